"""What to export: a trained task, or tasks of a bank, with the weights of their base."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

import modeling
import tokenization
from adapter_bert.common import errors, files
from adapter_bert.serving import predictor
from adapter_bert.serving.export_network import ExportedTask, Network, check_one, check_together
from adapter_bert.weights import bases, checkpoints
from adapter_bert.weights.bank import Bank


@dataclasses.dataclass(frozen=True, eq=False)
class ExportSource:
    """A base with tasks."""

    name: str  # of the exported model, unless the user names it
    config: modeling.BertConfig
    tokenizer: bases.Tokenizer
    tokenizer_file: str
    base: Mapping[str, np.ndarray]  # variables of the base; of a single task, those that it did not train
    tasks: Sequence[ExportedTask]
    is_bank: bool  # whether requests name their tasks

    def network(self) -> Network:
        """Create the network."""
        return Network(self.config, self.base, self.tasks, self.is_bank)


def find(
    bank: Optional[str] = None, task: Optional[str] = None, tasks: Optional[Sequence[str]] = None, **given: Any
) -> ExportSource:
    """Read and check what is to be exported.

    Args:
      bank: a bank, whose tasks are exported together unless `task` is given.
      task: the name of one task.
      tasks: names of tasks of the bank; by default all.
      **given: as in `predictor.load`.

    Raises:
      errors.UserError: the arguments or the files do not belong together, or a task cannot be exported.
    """
    if tasks is not None and (task or not bank):
        raise errors.UserError(
            "--tasks selects tasks of a bank to export together: use it with --bank, without --task."
        )
    if not bank or task:
        return _single(task, predictor.arguments(bank=bank, task=task, **given))
    unused = [f"--{name}" for name, value in given.items() if value]
    if unused:
        raise errors.UserError(f"{errors.first_names(unused)} cannot be used with --bank={bank}.")
    return _whole_bank(bank, tasks)


def _single(name: Optional[str], arguments: Dict[str, Any]) -> ExportSource:
    trained = predictor.TrainedTask.read(**arguments)
    config = trained.config
    name = name or config.task
    with files.user_errors():
        tensors: Dict[str, np.ndarray] = {}
        for each in trained.weights.assignments:
            tensors.update(checkpoints.read_tensors(each.path, each.names) if each.values is None else each.values)
    own = {key: tensors.pop(key) for key in config.trained_shapes()}
    task = ExportedTask(name, config, own, trained.max_seq_length)
    check_one(task)
    return ExportSource(
        name, config.bert_config, trained.tokenizer, trained.tokenizer_file, tensors, [task], is_bank=False
    )


def _whole_bank(bank: str, tasks: Optional[Sequence[str]]) -> ExportSource:
    with files.user_errors():
        opened = Bank.open(bank)
        names: List[str] = list(opened.names() if tasks is None else tasks)
        if not names:
            raise errors.UserError(f"There is nothing to export: the bank {bank} is empty.")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise errors.UserError(f"--tasks names {errors.first_names(repeated)} more than once.")
        loaded = [opened.read(name) for name in names]
        found = [ExportedTask(name, p.config, p.tensors, p.config.max_seq_length) for name, p in zip(names, loaded)]
        check_together(found)
        base = opened.base
        lower_case = loaded[0].config.tokenizer["do_lower_case"]
        tokenizer = tokenization.create_tokenizer(base.vocab_file, base.spm_model_file, lower_case)
        name = os.path.basename(opened.folder)
        return ExportSource(name, base.config, tokenizer, base.tokenizer_file, opened.tensors(), found, is_bank=True)
