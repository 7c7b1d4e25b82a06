"""Remove trained adapters from every span of layers, without retraining, and score the dev split (section 3.6).

    python scripts/ablate.py --run=runs/cola --output_dir=runs/cola_ablation
    python scripts/ablate.py --run runs/mnli_seed1 runs/mnli_seed2 runs/mnli_seed3 --metric=accuracy
    python scripts/ablate.py --adapter_pack=cola.safetensors --bert_dir=bert --data_dir=glue_data/CoLA

Task, data and base are those that the run recorded. The script writes `ablation.json`, `ablation.csv` and the heat map
of figure 6 (`ablation.png`, `ablation.svg`) to the output folder. For several runs, e.g. with different seeds, the
files contain means.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors

# Option -> setting that it replaces.
CHANGES = {name: name for name in ("bert_dir", "data_dir", "train_file", "dev_file", "eval_batch_size")}
CHANGES["metric"] = "primary_metric"


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--run", metavar="FOLDER", nargs="+", help="output folders of training runs of one task")
    model.add_argument("--adapter_pack", metavar="PACK", help="a pack; needs --bert_dir, and --data_dir or --dev_file")
    option("--bert_dir", metavar="FOLDER", help="folder or name of the base; needed with --run only if it was moved")
    option("--data_dir", metavar="FOLDER", help="folder of the task's files; needed with --run only if it was moved")
    option("--train_file", metavar="FILE", help="custom data: the training set, if the dev set is split off from it")
    option("--dev_file", metavar="FILE", help="custom data: the dev set")
    option("--metric", help="e.g. accuracy, as in figure 6; default: the primary metric of the run")
    option("--eval_batch_size", type=int, help="examples per batch; default: as in the run")
    option("--output_dir", metavar="FOLDER", default="ablation", help="folder to write; default: ablation")
    option("--overwrite", action="store_true", help="replace the ablation in --output_dir")
    return parser.parse_args(words)


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Ablate the runs, write the results and print a summary."""
    args = parse(words)
    if args.adapter_pack and not (args.bert_dir and (args.data_dir or args.dev_file or args.train_file)):
        raise errors.UserError(
            f"--adapter_pack={args.adapter_pack} needs its base, --bert_dir, and a dev set: --data_dir or --dev_file."
        )
    # Imported only after the flags are checked, because these modules import TensorFlow.
    from adapter_bert.common import logs
    from adapter_bert.experiments import ablation
    from adapter_bert.weights.exchange.outputs import OutputFolder

    logs.show_progress()
    changes: Dict[str, Any] = {name: getattr(args, option) for option, name in CHANGES.items() if getattr(args, option)}
    if args.adapter_pack:
        changes["output_dir"] = args.output_dir
    output = OutputFolder(args.output_dir, ablation.FILES, args.overwrite, *(args.run or ()))
    runs = [ablation.ablate(each) for each in ablation.find_all_settings(args.run or [args.adapter_pack], changes)]
    paths = ablation.write(output, runs)
    print(ablation.format_summary(runs))
    print(f"\n{', '.join(paths)}")


if __name__ == "__main__":
    main()
