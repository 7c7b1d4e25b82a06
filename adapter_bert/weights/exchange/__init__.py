"""Weights in the formats of other libraries: Hugging Face, AdapterHub, Google's checkpoints."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence


class ImportedTask(NamedTuple):
    """Information about a task that files of other libraries do not record.

    Attributes:
      name: name of the task.
      labels: the classes in the order of the head; empty for regression and spans; None for the labels of the head.
      max_seq_length: length of sequences in training.
      created: date of the pack.
    """

    name: str
    labels: Optional[Sequence[str]]
    max_seq_length: int
    created: str
