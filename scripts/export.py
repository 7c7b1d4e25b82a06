"""Export trained tasks for servers and devices that do not have this project.

    python scripts/export.py --run=runs/sst2 --output=models                        # SavedModel: models/sst-2/1
    python scripts/export.py --bank=bank --output=models --name=all                 # all tasks of a bank in one model
    python scripts/export.py --bank=bank --task=cola --format=onnx --output=models  # one task as ONNX

The model is written to OUTPUT/NAME/VERSION, the layout that TF-Serving and Triton read. A SavedModel takes texts and
needs the package tensorflow-text, or takes token ids (--inputs=ids); ONNX and TFLite take token ids. See
docs/export.md.
"""

from __future__ import annotations

import argparse
from typing import Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert.common import errors

MODEL = ("run", "adapter_pack", "bank", "task", "bert_dir", "init_checkpoint", "vocab_file", "spm_model_file")


def parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--run", metavar="FOLDER", help="output folder of a training run")
    model.add_argument("--adapter_pack", metavar="PACK", help="a pack; needs --bert_dir or --init_checkpoint")
    model.add_argument("--bank", metavar="FOLDER", help="a bank: all its tasks, unless --task or --tasks is given")
    option("--task", metavar="NAME", help="one task of the bank")
    option("--tasks", metavar="NAME,NAME", help="several tasks of the bank, in one model")
    option("--bert_dir", metavar="FOLDER", help="folder of the base; needed with --run only if it was moved")
    option("--init_checkpoint", metavar="PATH", help="checkpoint of the base, instead of --bert_dir")
    option("--vocab_file", metavar="FILE", help="WordPiece vocabulary, if it is not beside the base")
    option("--spm_model_file", metavar="FILE", help="SentencePiece model, if it is not beside the base")
    option("--output", metavar="FOLDER", required=True, help="folder of models; the result is OUTPUT/NAME/VERSION")
    option("--name", help="name of the model; default: that of the task or the bank")
    option("--version", type=int, help="default: 1, or one more than the newest version there")
    option("--format", default="savedmodel", help="savedmodel (default), onnx or tflite")
    option("--inputs", default="text", help="of a SavedModel: text (default) or ids")
    option("--pairs", action="store_true", help="of a SavedModel: the default signature takes pairs of texts")
    option("--int8", action="store_true", help="of ONNX and TFLite: store weights as 8-bit integers")
    return parser.parse_args(words)


@errors.exits_on_user_error
def main(words: Optional[Sequence[str]] = None) -> None:
    """Read what the flags name, export it, and print the folder."""
    args = parse(words)
    # These import TensorFlow, so only after the flags are parsed.
    from adapter_bert.common import logs
    from adapter_bert.serving import export, export_source

    logs.show_progress()
    options = export.ExportOptions(args.format, args.inputs, args.pairs, args.int8, args.name, args.version)
    options.check()
    given = {name: getattr(args, name) for name in MODEL if getattr(args, name)}
    tasks = args.tasks.split(",") if args.tasks is not None else None
    print(export.export(export_source.find(tasks=tasks, **given), args.output, options))
    errors.check_output()


if __name__ == "__main__":
    main()
