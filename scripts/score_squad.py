"""Score predictions for a SQuAD file; print what the official script of that version would print.

    python scripts/score_squad.py dev-v1.1.json predictions.json
    python scripts/score_squad.py dev-v2.0.json predictions.json --null_odds=null_odds.json [--threshold=1.0]

Predictions are a JSON object of question id -> text, e.g. the `predictions.json` of a run. Null odds map
question id -> number, higher if no answer is more likely. The scores are printed to stdout as JSON, warnings to stderr.
Questions without a prediction count 0 in version 1.1; in 2.0, where the official script fails, they are ignored.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors, files, json_files, paths, streams
from adapter_bert.evaluation import squad_metrics


def check_output(path: str) -> None:
    """Raise a `UserError` unless a file does not exist, or contains scores."""
    if paths.is_taken(path) and not {"exact", "exact_match"} & set(json_files.read_object(path)):
        raise errors.UserError(f"--output={path} exists and does not contain scores; choose another file.")


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the scores; optionally write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", metavar="DATASET", help="SQuAD file with answers")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="JSON: question id -> text, empty for no answer")
    parser.add_argument("--null_odds", metavar="FILE", help="JSON: question id -> number, high if there is no answer")
    parser.add_argument("--threshold", type=float, help="null odds above it mean no answer; default: 1.0")
    parser.add_argument(
        "--version",
        choices=(squad_metrics.AUTO, *squad_metrics.VERSIONS),
        default=squad_metrics.AUTO,
        help="scoring rules; default: auto, 2.0 for files with is_impossible or with questions without answers",
    )
    parser.add_argument("--output", metavar="FILE", help="also write the scores to this file")
    args = parser.parse_args(argv)
    with files.user_errors():
        if args.output:
            check_output(args.output)
        scores, warnings = squad_metrics.score_files(
            args.dataset, args.predictions, args.null_odds, args.threshold, args.version
        )
        for warning in warnings:
            print(streams.printable(f"{os.path.basename(sys.argv[0])}: warning: {warning}"), file=sys.stderr)
        print(scores)
        if args.output:
            files.make_folder(os.path.dirname(args.output) or ".")
            files.write_text(args.output, scores + "\n")
        else:
            errors.check_output()


if __name__ == "__main__":
    main()
