"""One base and its packs in a folder: makes the bank, lists, adds, removes, checks, converts.

    python scripts/bank.py create  --bank=bank --base=uncased_L-12_H-768_A-12
    python scripts/bank.py add     --bank=bank runs/cola
    python scripts/bank.py list    --bank=bank
    python scripts/bank.py show    --bank=bank cola
    python scripts/bank.py verify  --bank=bank
    python scripts/bank.py remove  --bank=bank cola
    python scripts/bank.py export  --bank=bank cola --format=adapterhub --output=exports/cola
    python scripts/bank.py import  --bank=bank google/model.ckpt-1340 --format=checkpoint --task_name=CoLA

`python scripts/bank.py COMMAND --help` has the options of a command.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert import tasks
from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, packs
from adapter_bert.weights.bank import BASE, Bank, Row
from adapter_bert.weights.exchange import adapterhub, google_checkpoints, huggingface

FORMATS = ("pack", "adapterhub", "checkpoint")
CHECKPOINT_NAME = "model.ckpt"


def create(args: argparse.Namespace) -> None:
    """Makes a bank from a base."""
    Bank.check_free(args.bank)
    if not _is_hugging_face(args.base):
        bank = Bank.create(args.bank, bases.Base.find(args.base))
    else:
        # Beside the bank, where there has to be room for the copy anyway; left by a kill, it goes as that would.
        folder = files.temporary_name(os.path.abspath(args.bank))
        try:
            done = huggingface.convert(args.base, folder)
            bank = Bank.create(args.bank, bases.Base.find(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if done.pooler_is_random:
            print(f"Warning: {args.base} has no pooler (a masked language model's weights), so it has a random one.")
    print(f"Created the bank {bank.folder}: {_describe_base(bank)}, fingerprint of all weights {bank.notes.base}.")


def _is_hugging_face(folder: str) -> bool:
    names = (bases.CONFIG_NAME, "config.json")
    return [os.path.isfile(os.path.join(folder, name)) for name in names] == [False, True]


def _describe_base(bank: Bank) -> str:
    config = bank.base.config()
    return (
        f"a BERT of {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{parameters.count(bank.base.shapes()):,} parameters"
    )


def list_packs(args: argparse.Namespace) -> None:
    """Prints a table of the packs, and what they come to."""
    bank = Bank.open(args.bank)
    rows = bank.rows()
    print(f"{bank.folder}: {_describe_base(bank)}.")
    if rows:
        print(as_table(rows))
    print(describe_totals(rows, parameters.count(bank.base.shapes())))


def as_table(rows: Sequence[Row]) -> str:
    """The packs of a bank, a line each; numbers are at the right of their columns."""
    titles = ("name", "task", "mode", "parameters", "MB", "score", "seed", "date")
    lines = [titles] + [_cells(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    numbers = (3, 4, 6)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> Sequence[str]:
    size = f"{row.size / 1e6:.1f}" if row.size >= 1e5 else f"{row.size / 1e6:.3f}"
    if row.problem:
        return row.name, "?", "?", "?", size, "cannot be read: see verify", "?", "?"
    mode = " ".join(str(part) for part in (row.mode, row.adapter_size, row.top_layers) if part is not None)
    score = "-" if row.metric is None else f"{row.metric} " + ("?" if row.value is None else f"{row.value:.4f}")
    score += " (collapsed)" if row.collapsed else ""
    seed = "-" if row.seed is None else str(row.seed)
    return row.name, str(row.task), mode, f"{row.parameters:,}", size, score, seed, str(row.created)[:10]


def describe_totals(rows: Sequence[Row], base: int) -> str:
    """What a bank comes to, and what as many full fine-tunings would.

    Args:
      rows: its packs.
      base: parameters of the base.
    """
    total = base + sum(row.parameters for row in rows)
    count = "1 pack" if len(rows) == 1 else f"{len(rows)} packs"
    lines = [f"{count}, {sum(row.size for row in rows) / 1e6:.1f} MB; with the base {total:,} parameters"]
    if len(rows) > 1:
        lines.append(f": {total / base:.2f}x one BERT instead of {len(rows)}x, a fine-tuned one for each")
    return "".join(lines) + "."


def show(args: argparse.Namespace) -> None:
    """Prints everything that is known of a pack."""
    bank = Bank.open(args.bank)
    pack = bank.read(args.name)
    values = {
        "name": args.name,
        "file": bank.path(args.name),
        "bytes": files.size(bank.path(args.name)),
        "parameters": pack.num_parameters,
        "tensors": len(pack.tensors),
        "fingerprint": pack.fingerprint,
    }
    values.update(dataclasses.asdict(pack.config))
    if pack.config.adapter and not args.json:
        values["adapter"] = dict(pack.config.adapter, layers=pack.config.adapter["layers"] or "all")
    if args.json:
        print(json.dumps(files.finite(values), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_as_lines(values)))


def _as_lines(values: Mapping[str, Any], indent: str = "") -> List[str]:
    """A readable form of nested values."""
    lines = []
    width = max((len(str(key)) for key in values), default=0) + 2
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{key}")
            lines.extend(_as_lines(value, indent + "  "))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            lines.append(f"{indent}{key}")
            for number, item in enumerate(value, start=1):
                lines.extend(_as_lines({f"{number}.": item}, indent + "  "))
        else:
            lines.append(f"{indent}{str(key).ljust(width)}{_as_word(value)}".rstrip())
    return lines


def _as_word(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100000 else str(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def add(args: argparse.Namespace) -> None:
    """Puts a pack into the bank."""
    bank = Bank.open(args.bank)
    pack = packs.read(packs.find(args.path))
    if args.results:
        pack = with_results(pack, args.results)
    _add(bank, pack, args)


def _add(bank: Bank, pack: packs.Pack, args: argparse.Namespace) -> None:
    name = args.name or pack.config.task.lower()
    path = bank.add(pack, name, args.replace)
    print(
        f"Added {path}: task {pack.config.task}, {pack.num_parameters:,} parameters, {files.size(path) / 1e6:.3g} MB, "
        f"fingerprint {pack.fingerprint}."
    )


def with_results(pack: packs.Pack, path: str) -> packs.Pack:
    """The pack with the scores in a `results.json`.

    Raises:
      errors.UserError: the file is of other weights or of another task, or no `results.json`.
    """
    if os.path.isdir(path):
        path = os.path.join(path, "results.json")
    try:
        results = files.read_json_object(path)
    except errors.UserError as error:
        raise errors.UserError(f"--results takes the results.json of an evaluation. {error}") from None
    prints, metrics = results.get("fingerprints"), results.get("metrics")
    if not isinstance(prints, dict) or not isinstance(metrics, dict) or not metrics:
        raise errors.UserError(f"{path} is no results.json of an evaluation: expected metrics and fingerprints in it.")
    if prints.get("pack") != pack.fingerprint:
        raise errors.UserError(
            f"{path} has the scores of other weights: their fingerprint is {prints.get('pack')}, the pack's is "
            f"{pack.fingerprint}. Evaluate this pack: {_script_of(pack.config)} --do_eval=true --adapter_pack=…"
        )
    if results.get("task") != pack.config.task:
        raise errors.UserError(
            f"{path} has the scores of the task {results.get('task')}; the pack is of {pack.config.task}."
        )
    for name, value in list(metrics.items()) + [("loss", results.get("loss"))]:
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise errors.UserError(f"{path} is damaged: {name} cannot be {value!r}.")
    first = results.get("primary_metric")
    ordered = sorted(metrics, key=lambda name: name != first)
    config = dataclasses.replace(
        pack.config,
        metrics={name: metrics[name] for name in ordered},
        loss=results.get("loss"),
        collapsed=bool(results["collapsed"]) if results.get("collapsed") is not None else None,
    )
    return packs.Pack(config, pack.tensors)


def _script_of(config: packs.PackConfig) -> str:
    """What trains and evaluates such a pack."""
    return "run_squad.py" if config.head == "span" else "run_classifier.py"


def remove(args: argparse.Namespace) -> None:
    """Removes the packs that were named, and says what they were; a mistake in one name removes none."""
    bank = Bank.open(args.bank)
    rows = {row.name: row for row in bank.rows()}
    for name in args.names:
        bank.path(name)
    for name in dict.fromkeys(args.names):
        path = bank.remove(name)
        row = rows.get(name)
        what = f"task {row.task}, {row.parameters:,} parameters" if row and not row.problem else "it could not be read"
        print(f"Removed {path}: {what}.")


def verify(args: argparse.Namespace) -> None:
    """Reads every byte of the bank; leaves with exit code 1 if something is wrong."""
    bank = Bank.open(args.bank)

    def tell(name: str, problem: Optional[str]) -> None:
        print(f"{'BAD ' if problem else 'good'}  {name}" + (f": {problem}" if problem else ""), flush=True)

    results = bank.verify(tell)
    bad = [name for name, problem in results if problem]
    print(f"{len(results) - len(bad)} of {len(results)} are good (the base, called {BASE}, among them).")
    if bad:
        sys.exit(1)


def export(args: argparse.Namespace) -> None:
    """Writes a pack of the bank for others."""
    bank = Bank.open(args.bank)
    if args.format == "pack":
        inside = os.path.join(args.output, args.name + packs.ENDING)
        path = args.output if packs.is_pack(args.output) else inside
        if not args.overwrite:
            files.check_absent(path)
        pack = bank.read(args.name)
        files.make_folder(os.path.dirname(path) or ".")
        packs.write(path, pack)
        print(f"Wrote {path}: {pack.num_parameters:,} parameters, for a base with frozen weights {pack.config.base}.")
    elif args.format == "adapterhub":
        adapterhub.export(bank.read(args.name), bank.base, args.output, args.overwrite)
        print(f"Wrote {args.output}: an adapter for AdapterHub; its README.md has the lines that load it.")
    else:
        if not args.output:
            raise errors.UserError("--output is empty: give a prefix, e.g. exports/cola/model.ckpt.")
        is_folder = os.path.isdir(args.output) or args.output.endswith("/")
        prefix = os.path.join(args.output, CHECKPOINT_NAME) if is_folder else args.output
        count = bank.export_checkpoint(args.name, prefix, args.overwrite)
        flags = dict(bank.base.flags(), init_checkpoint=prefix)
        print(f"Wrote {prefix}.*: {count} variables, base and pack in one. For programs like Google's:")
        print(" ".join(f"--{name}={value}" for name, value in flags.items()))


def import_pack(args: argparse.Namespace) -> None:
    """Takes what others have trained on this base into the bank."""
    bank = Bank.open(args.bank)
    if args.format == "pack":
        if args.task_name or args.labels is not None:
            raise errors.UserError("A pack says itself what it is for: leave --task_name and --labels away.")
        _add(bank, packs.read(packs.find(args.path)), args)
        return
    if not args.task_name:
        raise errors.UserError(f"--format={args.format} does not say what the weights are for: give --task_name.")
    task, labels = find_task(args.task_name, args.labels)
    lower = args.do_lower_case == "true"
    longest = bank.base.config().max_position_embeddings
    length = min(128, longest) if args.max_seq_length is None else args.max_seq_length
    if args.format == "adapterhub":
        pack = adapterhub.read(args.path, bank.base, task, labels, packs.now(), length, lower)
    else:
        pack = google_checkpoints.pack_from_checkpoint(
            args.path,
            bank.base.config(),
            task,
            _labels_of_checkpoint(args.path, task, labels),
            bank.base.describe_tokenizer(lower),
            length,
            packs.now(),
            activation=args.adapter_activation,
        )
    if pack.config.head == "span":
        if task in tasks.names():
            raise errors.UserError(
                f"The head in {args.path} finds answers in texts, as SQuAD's; {task} is no such task. Give another "
                "--task_name."
            )
        if args.max_seq_length is None:
            config = dataclasses.replace(pack.config, max_seq_length=min(384, longest))
            pack = packs.Pack(config, pack.tensors)
    _add(bank, pack, args)


def _labels_of_checkpoint(path: str, task: str, labels: Optional[List[str]]) -> List[str]:
    """The labels that are given or known; none where the checkpoint's head has none."""
    if labels is not None:
        return labels
    if google_checkpoints.has_span_head(path):
        return []
    raise errors.UserError(
        f"'{task}' is no task that is known here ({', '.join(tasks.names())}), and a checkpoint does not name its "
        "classes: give --labels=a,b in the head's order, or --labels= for a regression."
    )


def find_task(name: str, labels: Optional[str]) -> Tuple[str, Optional[List[str]]]:
    """The task's own spelling and its labels: those that are given, or those that are known, or None."""
    given = None if labels is None else [label.strip() for label in labels.split(",") if label.strip()]
    try:
        task = tasks.get(name)
    except errors.UserError:
        return name, given
    return task.name, list(task.labels) if given is None else given


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(run: Callable[[argparse.Namespace], None], name: str, about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        added.set_defaults(run=run)
        added.add_argument("--bank", required=True, help="the bank's folder, local")
        return added

    one = command(create, "create", "make a bank in a new folder, with a copy of a base")
    one.add_argument(
        "--base",
        required=True,
        help="folder with bert_config.json, bert_model.ckpt.* and vocab.txt or *.model, as Google's downloads; or a "
        "Hugging Face BERT with config.json, *.safetensors and vocab.txt",
    )
    command(list_packs, "list", "print a table of the packs, and what they come to (MB are millions of bytes)")
    one = command(show, "show", "print everything that a pack says of itself")
    one.add_argument("name", metavar="NAME", help="of the pack")
    one.add_argument("--json", action="store_true", help="for programs")
    one = command(add, "add", "put a pack into the bank")
    one.add_argument("path", metavar="PATH", help=f"a pack (*{packs.ENDING}), or the output folder of a training")
    _add_name(one)
    one.add_argument("--results", help="results.json, or its folder, of an evaluation of this pack: its scores")
    one = command(remove, "remove", "remove packs for good")
    one.add_argument("names", metavar="NAME", nargs="+", help="of a pack")
    command(verify, "verify", "read every byte of base and packs; the exit code is 1 if something is wrong")
    one = command(export, "export", "write a pack for others")
    one.add_argument("name", metavar="NAME", help="of the pack")
    one.add_argument("--format", choices=FORMATS, default="pack", help="default: pack; checkpoint has the base in it")
    one.add_argument("--output", required=True, help="pack: a file or folder; adapterhub: a folder; checkpoint: prefix")
    one.add_argument("--overwrite", action="store_true", help="replace what is there")
    _add_import(command(import_pack, "import", "take what others have trained on this base into the bank"))
    return parser


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", help="in the bank: letters, digits, '-', '_', '.'; default: the task's name in lower case"
    )
    parser.add_argument("--replace", action="store_true", help="replace the pack of that name")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a pack, AdapterHub's folder, or a checkpoint's prefix or folder")
    parser.add_argument(
        "--format", choices=FORMATS, default="pack", help="default: pack; checkpoint: of Google's adapter-bert or BERT"
    )
    parser.add_argument("--task_name", help="what the weights are for; the labels of GLUE's tasks are known")
    parser.add_argument(
        "--labels", help="names of the classes in the head's order, a,b,c; empty for a regression; not for SQuAD"
    )
    _add_name(parser)
    parser.add_argument(
        "--max_seq_length",
        type=int,
        help="tokens, as in the training; default: 128, for SQuAD 384, or fewer where the base has fewer",
    )
    parser.add_argument(
        "--do_lower_case", choices=("true", "false"), default="true", help="as in the training; default: true"
    )
    parser.add_argument(
        "--adapter_activation", default="gelu", help="of the adapters in a checkpoint; default: gelu, as Google's"
    )


@errors.exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Runs one command."""
    args = make_parser().parse_args(argv)
    try:
        with files.user_errors():
            args.run(args)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise errors.UserError(f"The file system refused: {error}.") from None


if __name__ == "__main__":
    main()
