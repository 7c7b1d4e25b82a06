"""Manage a bank: one base and its packs in a folder.

    python scripts/bank.py create  --bank=bank --base=uncased_L-12_H-768_A-12
    python scripts/bank.py add     --bank=bank runs/cola
    python scripts/bank.py list    --bank=bank
    python scripts/bank.py show    --bank=bank cola
    python scripts/bank.py verify  --bank=bank
    python scripts/bank.py remove  --bank=bank cola
    python scripts/bank.py export  --bank=bank cola --format=adapterhub --output=exports/cola
    python scripts/bank.py import  --bank=bank google/model.ckpt-1340 --format=checkpoint --task_name=CoLA

`python scripts/bank.py COMMAND --help` lists the options of a command.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from typing import Any, Callable, List, Mapping, Optional, Sequence

from adapter_bert.common import system

system.configure_tensorflow()

import tabulate

from adapter_bert import tasks
from adapter_bert.common import errors, files, paths
from adapter_bert.common.streams import printable
from adapter_bert.evaluation.results import EvalResults
from adapter_bert.model import parameters
from adapter_bert.settings import base_files
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import BASE, Bank, PackSummary
from adapter_bert.weights.exchange import (
    ImportedTask,
    adapterhub,
    google_checkpoints,
    huggingface,
    known_bases,
    outputs,
)
from adapter_bert.weights.run_folder import RunFolder

FORMATS = ("pack", "adapterhub", "checkpoint")
# Columns of `list`.
TITLES = ("name", "task", "mode", "parameters", "MB", "score", "seed", "date")
ALIGNMENT = ("left", "left", "left", "right", "right", "left", "right", "left")


def create(args: argparse.Namespace) -> None:
    """Create a bank in a new folder, with a copy of a base."""
    folder = Bank.check_absent(args.bank, args.base)
    base = known_bases.provide(args.base)
    is_hugging_face = os.path.isfile(os.path.join(base, huggingface.HF_CONFIG))
    if paths.is_file(os.path.join(base, bases.CONFIG_NAME)) or not is_hugging_face:
        bank = Bank.create(folder, bases.Base.find(base))
    elif paths.is_remote(folder):
        raise errors.UserError(f"--bank={folder} is remote: convert {base} first (scripts/convert_hf_checkpoint.py).")
    else:
        # Beside the bank, where there must be space for the copy anyway.
        with files.staging_folder(folder) as converted:
            done = huggingface.convert(base, converted)
            bank = Bank.create(folder, bases.Base.find(converted))
        if done.pooler_is_random:
            print(f"Warning: {base} has no pooler (a masked language model); the pooler is random.")
    print(f"Created the bank {printable(bank.folder)}: {_describe_base(bank)}, fingerprint {bank.manifest['base']}.")


def _describe_base(bank: Bank) -> str:
    config = bank.base.config
    return (
        f"a BERT with {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{parameters.count(bank.base.shapes):,} parameters"
    )


def list_packs(bank: Bank, args: argparse.Namespace) -> None:
    """Print a table of the packs and totals (1 MB is a million bytes)."""
    summaries = bank.summaries()
    print(f"{printable(bank.folder)}: {_describe_base(bank)}.")
    if summaries:
        rows = [list(map(printable, _cells(summary))) for summary in summaries]
        print(tabulate.tabulate(rows, TITLES, "plain", colalign=ALIGNMENT, disable_numparse=True))
    for summary in summaries:
        if summary.problem:
            print(printable(f"BAD   {summary.name}: {summary.problem}"))
    print(_describe_totals(summaries, parameters.count(bank.base.shapes)))
    errors.check_output()


def _cells(summary: PackSummary) -> Sequence[str]:
    size = f"{summary.size / 1e6:.1f}" if summary.size >= 1e5 else f"{summary.size / 1e6:.3f}"
    config = summary.config
    if config is None:
        return summary.name, "?", "?", "?", size, "BAD, see below", "?", "?"
    mode = (config.tuning_mode, (config.adapter or {}).get("size"), config.tune_top_layers)
    scores = [f"{name} {'?' if value is None else format(value, '.4f')}" for name, value in config.metrics.items()]
    return (
        summary.name,
        config.task,
        " ".join(str(part) for part in mode if part is not None),
        f"{summary.parameters:,}",
        size,
        (scores or ["-"])[0] + (" (collapsed)" if config.collapsed else ""),
        "-" if config.seed is None else str(config.seed),
        config.created[:10],
    )


def _describe_totals(summaries: Sequence[PackSummary], base: int) -> str:
    """Compare the size of a bank, whose base has `base` parameters, with one fine-tuned model per task."""
    count, size = len(summaries), sum(summary.size for summary in summaries) / 1e6
    total = base + sum(summary.parameters for summary in summaries)
    text = f"{count} pack{'' if count == 1 else 's'}, {size:.1f} MB; with the base {total:,} parameters"
    if count > 1:
        text += f": {total / base:.2f}x one BERT instead of {count}x with a fine-tuned BERT for each"
    return text + "."


def show(bank: Bank, args: argparse.Namespace) -> None:
    """Print the configuration of a pack."""
    pack = bank.read(args.name)
    values = {
        "name": args.name,
        "file": bank.path(args.name),
        "bytes": files.size(bank.path(args.name)),
        "parameters": pack.num_parameters,
        "tensors": len(pack.tensors),
        "fingerprint": pack.fingerprint,
        **dataclasses.asdict(pack.config),
    }
    if args.json:
        is_ascii = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
        print(json.dumps(files.finite(values), indent=2, ensure_ascii=is_ascii))
    else:
        if pack.config.adapter:
            values["adapter"] = dict(pack.config.adapter, layers=pack.config.adapter.get("layers") or "all")
        print("\n".join(map(printable, _lines(values))))
    errors.check_output()


def _lines(values: Mapping[str, Any], indent: str = "") -> List[str]:
    lines = []
    width = max(map(len, values)) + 2
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key:<{width}}{_format_value(value)}")
    return lines


def _format_value(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100000 else str(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def add(bank: Bank, args: argparse.Namespace) -> None:
    """Add a pack."""
    pack = packs.read(packs.find(args.path))
    if args.results:
        pack = _with_results(pack, args.results)
    _add(bank, pack, args)


def _add(bank: Bank, pack: packs.Pack, args: argparse.Namespace) -> None:
    path = bank.add(pack, args.name or pack.config.task.lower(), args.replace)
    task, count, size = printable(pack.config.task), pack.num_parameters, files.size(path) / 1e6
    print(f"Added {path}: task {task}, {count:,} parameters, {size:.3g} MB, fingerprint {pack.fingerprint}.")


def _with_results(pack: packs.Pack, path: str) -> packs.Pack:
    """Return the pack with the scores of its evaluation, in a `results.json` or in the folder of a run."""
    results = RunFolder(path).read_results() if paths.is_folder(path) else EvalResults.read(path)
    found = (results.fingerprints or {}).get("pack")
    if found != pack.fingerprint:
        raise errors.UserError(
            f"{path} has the scores of other weights: their fingerprint is {found}, the pack's is {pack.fingerprint}. "
            "Evaluate this pack with --do_eval=true --adapter_pack=…"
        )
    if results.task != pack.config.task:
        raise errors.UserError(f"{path} has the scores of task {results.task}, not {pack.config.task}.")
    return packs.with_scores(pack, results)


def remove(bank: Bank, args: argparse.Namespace) -> None:
    """Remove packs permanently."""
    # If one of the names is unknown, none is removed.
    for name in args.names:
        bank.path(name)
    for name in dict.fromkeys(args.names):
        print(f"Removed {bank.remove(name)}.")


def verify(bank: Bank, args: argparse.Namespace) -> None:
    """Check every byte of base and packs; the exit code is 1 if something is wrong."""
    problems = []
    for name, problem in bank.verify():
        print(printable(f"BAD   {name}: {problem}" if problem else f"good  {name}"))
        errors.check_output()
        problems.append(problem)
    print(f"{problems.count(None)} of {len(problems)} are good (including the base, {BASE}).")
    errors.check_output()
    if any(problems):
        sys.exit(1)


def export(bank: Bank, args: argparse.Namespace) -> None:
    """Write a pack for other programs."""
    outputs.check_place(args.output, bank.folder, bank.base.folder, os.path.dirname(bank.path(args.name)))
    if args.format == "pack":
        path = args.output
        if not packs.is_pack(path):
            path = os.path.join(path, args.name + packs.ENDING)
        outputs.check_pack(path, args.overwrite)
        pack = bank.read(args.name)
        files.make_folder(os.path.dirname(path) or ".")
        packs.write(path, pack)
        print(f"Wrote {path}: {pack.num_parameters:,} parameters, for a base with frozen weights {pack.config.base}.")
    elif args.format == "adapterhub":
        adapterhub.export(bank.read(args.name), bank.base, args.output, args.overwrite)
        print(f"Wrote {args.output}: an adapter for AdapterHub; its README.md shows how to load it.")
    else:
        is_folder = os.path.isdir(args.output) or args.output.endswith("/")
        prefix = os.path.join(args.output, "model.ckpt") if is_folder else args.output
        count = google_checkpoints.export(bank.read(args.name), bank.tensors(), prefix, args.overwrite)
        flags = dict(bank.base.flags(), init_checkpoint=prefix)
        print(f"Wrote {prefix}.*: {count} variables of base and pack. Flags for programs like Google's:")
        print(" ".join(f"--{name}={value}" for name, value in flags.items()))


def import_pack(bank: Bank, args: argparse.Namespace) -> None:
    """Add weights that other programs trained on this base."""
    if args.format != "pack":
        pack = _convert(bank.base, args)
    elif args.task_name or args.labels is not None:
        raise errors.UserError("A pack contains its task and labels: omit --task_name and --labels.")
    else:
        pack = packs.read(packs.find(args.path))
    _add(bank, pack, args)


def _convert(base: bases.Base, args: argparse.Namespace) -> packs.Pack:
    """Return the weights of another program as a pack."""
    if not args.task_name:
        raise errors.UserError(f"--format={args.format} requires --task_name: the weights do not name their task.")
    name, labels = args.task_name, None
    with contextlib.suppress(errors.UserError):  # it may be a task that only the user knows
        task = tasks.get(args.task_name)
        name, labels = task.name, None if task.find_labels else list(task.labels)
    if args.labels is not None:
        labels = [label.strip() for label in args.labels.split(",") if label.strip()]
    limit = base.config.max_position_embeddings
    length = min(128, limit) if args.max_seq_length is None else args.max_seq_length
    imported = ImportedTask(name, labels, length, packs.now(), args.do_lower_case == "true")
    if args.format == "adapterhub":
        pack = adapterhub.read(args.path, base, imported)
    else:
        pack = google_checkpoints.read(args.path, base, imported, args.adapter_activation)
    if pack.config.head != "span":
        return pack
    if name in tasks.names():
        raise errors.UserError(
            f"The head in {args.path} answers questions as for SQuAD, but {name} is another kind of task. Give "
            "another --task_name."
        )
    if args.max_seq_length is None:
        length = min(384, limit)
    return packs.Pack(dataclasses.replace(pack.config, max_seq_length=length), pack.tensors)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands and their options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[..., None]) -> Callable[..., Any]:
        about = str(run.__doc__)  # e.g. `Add a pack.`
        added = commands.add_parser(name, help=about[0].lower() + about[1:-1], description=about)
        added.set_defaults(run=run)
        added.add_argument("--bank", required=True, help="folder of the bank")
        return added.add_argument

    base = (
        "folder with bert_config.json, bert_model.ckpt.* and vocab.txt or *.model, like Google's downloads; or a "
        f"Hugging Face BERT with config.json, *.safetensors and vocab.txt; or {', '.join(base_files.KNOWN)} to download"
    )
    command("create", create)("--base", required=True, help=base)
    command("list", list_packs)
    option = command("show", show)
    option("name", metavar="NAME", help="name of the pack")
    option("--json", action="store_true", help="print JSON")
    option = command("add", add)
    option("path", metavar="PATH", help=f"a pack (*{packs.ENDING}), or the output folder of a training run")
    _add_name_options(option)
    option("--results", help="results.json of an evaluation of this pack, or its folder: adds the scores")
    option = command("remove", remove)
    option("names", metavar="NAME", nargs="+", help="name of a pack")
    command("verify", verify)
    option = command("export", export)
    option("name", metavar="NAME", help="name of the pack")
    option("--format", choices=FORMATS, default="pack", help="default: pack; a checkpoint includes the base")
    option("--output", required=True, help="pack: file or folder; adapterhub: folder; checkpoint: prefix")
    option("--overwrite", action="store_true", help="replace existing files")
    _add_import_options(command("import", import_pack))
    return parser


def _add_name_options(option: Callable[..., Any]) -> None:
    option("--name", help="name in the bank: letters, digits, '-', '_', '.'; default: the task in lower case")
    option("--replace", action="store_true", help="replace the pack of that name")


def _add_import_options(option: Callable[..., Any]) -> None:
    option("path", metavar="PATH", help="a pack, AdapterHub's folder, or the prefix or folder of a checkpoint")
    formats = "default: pack; checkpoint: of Google's adapter-bert or BERT"
    option("--format", choices=FORMATS, default="pack", help=formats)
    option("--task_name", help="task of the weights; the labels of GLUE's tasks are known")
    option("--labels", help="classes in the order of the head's units, a,b,c; empty for regression; not for SQuAD")
    _add_name_options(option)
    length = "sequence length in training; default: 128, or 384 for SQuAD, at most that of the base"
    option("--max_seq_length", type=int, help=length)
    option("--do_lower_case", choices=("true", "false"), default="true", help="as in training; default: true")
    option("--adapter_activation", default="gelu", help="of the adapters in a checkpoint; default: gelu")


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run one command."""
    args = make_parser().parse_args(argv)
    with files.user_errors():
        if args.run is create:
            create(args)
        else:
            args.run(Bank.open(args.bank), args)


if __name__ == "__main__":
    main()
