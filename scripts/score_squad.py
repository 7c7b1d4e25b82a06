r"""Scores predictions for a SQuAD file: prints what the official script of that version would print.

    python scripts/score_squad.py dev-v1.1.json predictions.json
    python scripts/score_squad.py dev-v2.0.json predictions.json --null_odds=null_odds.json [--threshold=1.0]

The predictions are any JSON object of question id -> text, e.g. a run's `predictions.json`; null odds are one of
question id -> number, the higher the surer that there is no answer. On stdout are the scores and nothing else, as JSON;
warnings go to stderr. Questions without a prediction count 0 in version 1.1; in 2.0 they are left out, where the
official script fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors, files
from adapter_bert.evaluation import squad_metrics
from adapter_bert.tasks import encodings, squad

VERSIONS = ("1.1", "2.0")


def read_object(path: str, expected: str, is_expected: Callable[[Any], bool]) -> Dict[str, Any]:
    """Reads a JSON object of question id -> value.

    Args:
      path: the file.
      expected: what its values are, in words.
      is_expected: tells whether a value is one.

    Raises:
      errors.UserError: it is missing, no JSON object, or has another value in it.
    """
    layout = f"expected a JSON object of question id -> {expected}"
    try:
        content = json.loads(encodings.decode_utf8(encodings.read_bytes(path), path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, errors.UserError):
            raise
        raise errors.UserError(f"{path} is no JSON ({errors.reason(error)}); {layout}.") from None
    if not isinstance(content, dict):
        raise errors.UserError(f"{path} holds {_shown(content)}; {layout}.")
    if isinstance(content.get("data"), list):
        raise errors.UserError(
            f"{path} seems to be a data set; {layout}. The data set comes first, the predictions second."
        )
    for key, value in content.items():
        if not is_expected(value):
            raise errors.UserError(f"{path}: the value of {key!r} is {_shown(value)}; {layout}.")
    return content


def read_predictions(path: str) -> Dict[str, str]:
    """Reads question id -> text; raises a `UserError` for anything else."""
    return read_object(path, "text", lambda value: isinstance(value, str))


def read_null_odds(path: str) -> Dict[str, float]:
    """Reads question id -> finite number; raises a `UserError` for anything else."""

    def is_number(value: Any) -> bool:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole or (isinstance(value, float) and math.isfinite(value))

    return read_object(path, "number", is_number)


def _shown(value: Any, limit: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + "…"


def version_of(dataset: squad.Dataset) -> str:
    """2.0 where the file speaks of questions that cannot be answered, or has some without answers; else 1.1."""
    is_2 = dataset.says_impossible or not all(question.answers for question in dataset.questions())
    return "2.0" if is_2 else "1.1"


def warnings_on(golds: Mapping[str, Sequence[str]], predictions: Mapping[str, str], version: str) -> List[str]:
    """What is odd about the predictions, a sentence each."""
    missing = [question for question in golds if question not in predictions]
    unknown = [question for question in predictions if question not in golds]
    told = []
    if missing:
        treated = "count 0" if version == "1.1" else "are left out"
        told.append(
            f"{len(missing)} of {len(golds)} questions have no prediction and {treated}, the first: {missing[0]!r}."
        )
    if unknown:
        told.append(
            f"{len(unknown)} of {len(predictions)} predictions are for no question of the data set and are ignored, "
            f"the first: {unknown[0]!r}."
        )
    return told


def score(args: argparse.Namespace) -> str:
    """Reads the files and scores; prints warnings.

    Returns:
      The scores as the official script prints them.

    Raises:
      errors.UserError: a file is not what it should be, the files do not belong together, or the options do not.
    """
    if args.threshold is not None and not args.null_odds:
        raise errors.UserError("--threshold is compared with null odds; give them with --null_odds=FILE.")
    dataset = squad.read(args.dataset)
    if not dataset.has_answers:
        raise errors.UserError(f"{args.dataset} has no answers to compare with; give a file that has.")
    version = version_of(dataset) if args.version == "auto" else args.version
    if args.null_odds and version == "1.1":
        raise errors.UserError("--null_odds is for version 2.0; the data set is scored as version 1.1.")
    golds, predictions = dataset.golds(), read_predictions(args.predictions)
    if not any(question in golds for question in predictions):
        raise errors.UserError(
            f"{args.predictions} has {len(predictions)} predictions, none of them for a question of {args.dataset}; "
            "give the predictions for this data set."
        )
    null_odds = read_null_odds(args.null_odds) if args.null_odds else None
    for warning in warnings_on(golds, predictions, version):
        print(f"{os.path.basename(sys.argv[0])}: warning: {warning}", file=sys.stderr)
    if version == "1.1":
        return json.dumps(squad_metrics.score_v1(golds, predictions))
    threshold = 1.0 if args.threshold is None else args.threshold
    return json.dumps(squad_metrics.score_v2(golds, predictions, null_odds, threshold), indent=2)


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", metavar="DATASET", help="a SQuAD file with answers")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="JSON: question id -> text, empty for no answer")
    parser.add_argument(
        "--null_odds", metavar="FILE", help="JSON: question id -> number, high where there is no answer"
    )
    parser.add_argument(
        "--threshold", type=float, help="null odds above it are scored as an empty prediction; default: 1.0"
    )
    parser.add_argument(
        "--version",
        choices=("auto", *VERSIONS),
        default="auto",
        help="rules to score by; default: auto, 2.0 for files with is_impossible or with questions without answers",
    )
    parser.add_argument("--output", metavar="FILE", help="write the scores there too")
    return parser


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Options -> scores on stdout."""
    args = make_parser().parse_args(argv)
    with files.user_errors():
        scores = score(args)
        print(scores)
        if args.output:
            files.make_folder(os.path.dirname(args.output) or ".")
            files.write_text(args.output, scores + "\n")


if __name__ == "__main__":
    main()
