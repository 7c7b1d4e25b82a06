"""PEFT's LoRA on query and value: another method, with about as many trained parameters as the adapters have."""

from __future__ import annotations

import functools
import sys
from typing import Any, Mapping

from benchmarks.sides import common


def lora_rank(config: Mapping[str, int], adapter_size: int) -> int:
    """The rank with which query and value get as many parameters as adapters and LayerNorms have."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    adapters = 2 * layers * (2 * adapter_size * width + width + adapter_size)
    norms = 2 * width * (2 * layers + 1)
    # Two matrices [width, rank] and [rank, width] for each of the two projections of a layer.
    return max(1, round((adapters + norms) / (2 * layers * 2 * width)))


def prepare(model: Any, rank: int) -> Any:
    """Adds LoRA; its library trains the head with it."""
    import peft

    config = peft.LoraConfig(
        task_type=peft.TaskType.SEQ_CLS, r=rank, lora_alpha=rank, target_modules=["query", "value"]
    )
    return peft.get_peft_model(model, config)


def main() -> None:
    """Does the job of the command line."""
    from benchmarks.sides import torch_training

    def with_rank(measure: Any, *args: Any) -> Any:
        def run(job: common.Job) -> common.Result:
            rank = lora_rank(job["config"], job["adapter_size"])
            return dict(measure(job, functools.partial(prepare, rank=rank), *args), rank=rank)

        return run

    save = lambda model, folder: model.save_pretrained(folder)  # noqa: E731
    kinds = {
        "step": with_rank(torch_training.measure_steps),
        "sizes": with_rank(torch_training.measure_sizes, save),
    }
    common.answer(kinds, sys.argv)


if __name__ == "__main__":
    main()
