"""The commands that are disturbed, each with the files it needs."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Callable, Dict, List, NamedTuple, Tuple, Union

from adapter_bert.weights import bases, packs
from tests import helpers


class Command(NamedTuple):
    """A command that runs in a folder prepared by steps of `PREPARATION`.

    Attributes:
      prepare: names of the steps that create its inputs, in order.
      line: script and arguments; paths are relative to the folder.
      outputs: paths that it may create or change; everything else is an input.
      is_atomic: a kill leaves the outputs as before or as after the command, not in between.
      is_slow: takes seconds, so that not every case is tried at every operation.
    """

    prepare: Tuple[str, ...]
    line: List[str]
    outputs: Tuple[str, ...] = ()
    is_atomic: bool = True
    is_slow: bool = False


def _line(script: str, flags: Dict[str, Any], *more: str) -> List[str]:
    return [script, *(f"--{name}={value}" for name, value in flags.items()), *more]


def _bank(operation: str, *arguments: str) -> List[str]:
    return ["scripts/bank.py", operation, "--bank=bank", *arguments]


def _export(name: str, kind: str, output: str) -> List[str]:
    return _bank("export", name, f"--format={kind}", f"--output={output}")


# Four steps, with a checkpoint every two and an evaluation at the end.
_TRAINING = {"num_train_epochs": 1, "train_batch_size": 2, "save_checkpoints_steps": 2}
CLASSIFIER = dict(helpers.base_flags("bert", "cola", "run"), **_TRAINING, eval_every_steps=4)
SQUAD = {
    "vocab_file": "bert/vocab.txt",
    "bert_config_file": "bert/bert_config.json",
    "init_checkpoint": "bert/bert_model.ckpt",
    "output_dir": "run",
    "train_file": "train.json",
    "predict_file": "dev.json",
    "max_seq_length": 32,
    "doc_stride": 8,
    "max_query_length": 8,
    "adapter_size": 4,
    "seed": 1,
    **_TRAINING,
}
TRAIN = _line("run_classifier.py", CLASSIFIER, "--do_train=true", "--do_eval=true")
TRAIN_SQUAD = _line("run_squad.py", SQUAD, "--do_train=true", "--do_predict=true")
CONVERT = "scripts/convert_hf_checkpoint.py"


def _write_bert(folder: str, name: str = "bert", seed: int = 7) -> None:
    helpers.write_bert(os.path.join(folder, name), helpers.tiny_config(num_hidden_layers=1), seed=seed)


def _write_packs(folder: str) -> None:
    base = bases.Base.find(os.path.join(folder, "bert"))
    for name, seed in (("one", 1), ("two", 2)):
        packs.write(os.path.join(folder, name + packs.ENDING), helpers.make_pack(base, seed=seed))


def _write_squad(folder: str) -> None:
    helpers.write_squad(os.path.join(folder, "train.json"), 6)
    helpers.write_squad(os.path.join(folder, "dev.json"), 3, 3)
    articles = [{"title": f"Part {part}", "paragraphs": helpers.squad_paragraphs(2, 2 * part)} for part in range(2)]
    with open(os.path.join(folder, "two.json"), "w") as file:
        json.dump({"version": "1.1", "data": articles}, file)


def _write_predictions(folder: str) -> None:
    rows = "".join(f"{number}\t{number % 2}\n" for number in range(1063))
    helpers.write_file(pathlib.Path(folder), "run/CoLA.tsv", f"index\tprediction\n{rows}")


def _write_texts(folder: str) -> None:
    with open(os.path.join(folder, "texts.txt"), "w") as file:
        file.write("the cat is big .\nthe dogs are small .\n")


# Steps that create inputs: a function of the folder, or a command that runs in it.
PREPARATION: Dict[str, Union[Callable[[str], Any], List[str]]] = {
    "bert": _write_bert,
    "another bert": lambda folder: _write_bert(folder, "bert2", 8),
    "packs": _write_packs,
    "cola": lambda folder: helpers.write_cola(os.path.join(folder, "cola"), 8, 4, 3),
    "squad": _write_squad,
    "texts": _write_texts,
    "table": lambda folder: helpers.write_file(pathlib.Path(folder), "table.csv", "id,text\n1,the cat\n2,the dog\n"),
    "run": TRAIN,
    "predictions": _write_predictions,
    "squad run": TRAIN_SQUAD,
    "bank": _bank("create", "--base=bert"),
    "one": _bank("add", "one.safetensors", "--name=one"),
    "two": _bank("add", "two.safetensors", "--name=two"),
    "hub": _export("one", "adapterhub", "out/hub"),
    "checkpoint": _export("one", "checkpoint", "out/model.ckpt"),
    "pack": _export("one", "pack", "out/pack.safetensors"),
    "hf": [CONVERT, "--base_dir=bert", "--output_dir=hf", "--do_lower_case=true"],
    "google": [CONVERT, "--hf_dir=hf", "--output_dir=google"],
}

_BANK = ("bert", "packs", "bank", "one")
_TWO = (*_BANK, "two")
_TASK = ("--task_name=CoLA", "--max_seq_length=16", "--name=new")

COMMANDS = {
    "train": Command(("bert", "cola"), TRAIN, ("run", "features"), False, True),
    "train squad": Command(("bert", "squad"), TRAIN_SQUAD, ("run", "features"), False, True),
    "evaluate": Command(
        ("bert", "cola", "run"),
        _line("run_classifier.py", CLASSIFIER, "--do_eval=true"),
        ("run", "features"),
        False,
        True,
    ),
    "predict": Command(
        ("bert", "cola", "run"),
        _line("run_classifier.py", CLASSIFIER, "--do_predict=true"),
        ("run", "features"),
        False,
        True,
    ),
    "predict squad": Command(
        ("bert", "squad", "squad run"),
        _line("run_squad.py", SQUAD, "--do_predict=true"),
        ("run", "features"),
        False,
        True,
    ),
    "predict texts": Command(
        ("bert", "cola", "run", "texts"),
        ["scripts/predict.py", "--run=run", "--input=texts.txt", "--init_checkpoint=bert/bert_model.ckpt"],
        is_slow=True,
    ),
    "predict table": Command(
        ("bert", "packs", "bank", "one", "table"),
        ["scripts/predict.py", "--bank=bank", "--task=one", "--input=table.csv", "--output=out/predicted.csv"],
        ("out",),
        is_slow=True,
    ),
    "score squad": Command(
        ("bert", "squad", "squad run"),
        ["scripts/score_squad.py", "dev.json", "run/predictions.json", "--output=out/scores.json"],
        ("out",),
    ),
    "split squad": Command(
        ("squad",),
        ["scripts/split_squad.py", "two.json", "--train_out=out/a.json", "--dev_out=out/b.json", "--overwrite"],
        ("out",),
        is_atomic=False,  # between two files
    ),
    "make submission": Command(
        ("predictions",),
        ["scripts/make_submission.py", "--runs=run", "--output=out/cola.zip", "--allow_missing"],
        ("out",),
    ),
    "convert from hf": Command(("bert", "hf"), PREPARATION["google"], ("google",)),
    "convert from hf, overwrite": Command(
        ("bert", "another bert", "hf", "google"),
        [CONVERT, "--hf_dir=hf", "--output_dir=bert2", "--overwrite"],
        ("bert2",),
    ),
    "convert to hf": Command(("bert",), PREPARATION["hf"], ("hf",)),
    "convert to hf, overwrite": Command(
        ("bert", "another bert", "hf"),
        [CONVERT, "--base_dir=bert2", "--output_dir=hf", "--do_lower_case=true", "--overwrite"],
        ("hf",),
    ),
    "bank create": Command(("bert",), PREPARATION["bank"], ("bank",)),
    "bank create from hf": Command(("bert", "hf"), _bank("create", "--base=hf"), ("bank",)),
    "bank list": Command(_TWO, _bank("list")),
    "bank show": Command(_TWO, _bank("show", "one")),
    "bank verify": Command(_TWO, _bank("verify")),
    "bank add": Command(_BANK, PREPARATION["two"], ("bank",)),
    "bank add, replace": Command(_BANK, _bank("add", "two.safetensors", "--name=one", "--replace"), ("bank",)),
    "bank remove": Command(_TWO, _bank("remove", "one"), ("bank",)),
    "bank import": Command(_BANK, _bank("import", "two.safetensors", "--name=new"), ("bank",)),
    "bank import, replace": Command(_BANK, _bank("import", "two.safetensors", "--name=one", "--replace"), ("bank",)),
    "bank import hub": Command((*_BANK, "hub"), _bank("import", "out/hub", "--format=adapterhub", *_TASK), ("bank",)),
    "bank import checkpoint": Command(
        (*_BANK, "checkpoint"), _bank("import", "out/model.ckpt", "--format=checkpoint", *_TASK), ("bank",)
    ),
    "bank export": Command(_TWO, _export("two", "pack", "out/pack.safetensors"), ("out",)),
    "bank export, overwrite": Command(
        (*_TWO, "pack"), [*_export("two", "pack", "out/pack.safetensors"), "--overwrite"], ("out",)
    ),
    "bank export hub": Command(_TWO, _export("two", "adapterhub", "out/hub"), ("out",)),
    "bank export hub, overwrite": Command(
        (*_TWO, "hub"), [*_export("two", "adapterhub", "out/hub"), "--overwrite"], ("out",)
    ),
    "bank export checkpoint": Command(_TWO, _export("two", "checkpoint", "out/model.ckpt"), ("out",)),
    "bank export checkpoint, overwrite": Command(
        (*_TWO, "checkpoint"), [*_export("two", "checkpoint", "out/model.ckpt"), "--overwrite"], ("out",)
    ),
}
