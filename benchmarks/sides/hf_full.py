"""Full fine-tuning with Hugging Face's transformers: everything is trained, no adapters."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.sides import common, torch_training


def prepare(model: Any) -> Any:
    """As it is."""
    return model


def save(model: Any, folder: str) -> None:
    """The weights of the whole network, without the optimizer's."""
    model.save_pretrained(folder)


if __name__ == "__main__":
    common.answer(
        {
            "step": lambda job: torch_training.measure_steps(job, prepare),
            "epoch": lambda job: torch_training.measure_epoch(job, prepare),
            "sizes": lambda job: torch_training.measure_sizes(job, prepare, save),
        },
        sys.argv,
    )
