"""AdapterHub's library `adapters`: the same adapters (its DoubleSeqBn), with the LayerNorms and the head trained too.

It would leave the LayerNorms frozen by itself; they train here because they do on our side, so that the work is equal.
Left as the library has it: its implementation of attention, and everything else.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from benchmarks.sides import common, torch_training

NAME = "task"


def prepare(model: Any, adapter_size: int) -> Any:
    """Adds the adapters, freezes the rest but LayerNorms and head."""
    import adapters

    if model.config.hidden_size % adapter_size:
        raise ValueError(f"AdapterHub takes a size only as a fraction of the width {model.config.hidden_size}.")
    # It warns of inactive adapters in a trial run that it makes before it switches them on.
    logging.getLogger("adapters").setLevel(logging.ERROR)
    adapters.init(model)
    reduction = model.config.hidden_size // adapter_size
    model.add_adapter(NAME, adapters.DoubleSeqBnConfig(reduction_factor=reduction, non_linearity="gelu"))
    model.train_adapter(NAME)
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name:
            parameter.requires_grad = True
    return model


def save(model: Any, folder: str) -> None:
    """The adapter and the head; the library does not save LayerNorms with them."""
    model.save_adapter(folder, NAME)


def main() -> None:
    """Does the job of the command line."""

    def with_size(measure: Any, *args: Any) -> Any:
        return lambda job: measure(job, functools.partial(prepare, adapter_size=job["adapter_size"]), *args)

    kinds = {
        "step": with_size(torch_training.measure_steps),
        "epoch": with_size(torch_training.measure_epoch),
        "sizes": with_size(torch_training.measure_sizes, save),
    }
    common.answer(kinds, sys.argv)


if __name__ == "__main__":
    main()
