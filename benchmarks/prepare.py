"""Puts a task's training split, or a random part of it, where all sides find it.

    python -m benchmarks.prepare --task=CoLA --data_dir=glue_data/CoLA --fraction=0.1 --batch=32 --output_dir=FOLDER

Writes `train.tsv` in the task's layout, for our command line, and the same examples as `examples.json`, for the others.
With a fraction below 1 there are as many examples as fill the batches of that part of an epoch: all sides then run
one whole epoch of the same, smaller data. (The first tenth of an epoch would not be the same to all: some sort by
length.)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import uuid

from adapter_bert.common import system

system.configure_tensorflow()

from adapter_bert import tasks
from adapter_bert.common import errors
from adapter_bert.tasks.task import read_lines
from benchmarks import plan


def chosen_indices(count: int, batch: int, fraction: float) -> list:
    """Which of so many examples make this part of an epoch: whole batches, always the same ones."""
    if fraction >= 1:
        return list(range(count))
    wanted = max(1, int(count * fraction / batch)) * batch
    if wanted > count:
        raise errors.UserError(f"The split has {count} examples, less than a batch of {batch}.")
    return sorted(random.Random(plan.DATA_SEED).sample(range(count), wanted))


def write_part(task: tasks.Task, data_dir: str, batch: int, fraction: float, folder: str) -> int:
    """Writes both files.

    Args:
      task: the task.
      data_dir: its folder.
      batch: examples in a batch.
      fraction: how much of an epoch.
      folder: to be made; it appears when it is complete.

    Returns:
      How many examples there are.
    """
    examples = list(tasks.read_examples(task, data_dir, "train"))
    chosen = [examples[index] for index in chosen_indices(len(examples), batch, fraction)]
    lines = list(read_lines(os.path.join(data_dir, task.train.file)))
    header = lines[:1] if task.train.header else []
    rows = [lines[int(example.guid.rpartition("-")[2])] for example in chosen]
    content = [
        {"text_a": example.text_a, "text_b": example.text_b, "label": task.labels.index(example.label)}
        for example in chosen
    ]
    partial = f"{folder}.{uuid.uuid4().hex[:8]}.partial"
    os.makedirs(partial)
    with open(os.path.join(partial, "train.tsv"), "w", encoding="utf-8", newline="") as file:
        file.write("\n".join(header + rows) + "\n")
    with open(os.path.join(partial, "examples.json"), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.rename(partial, folder)
    return len(chosen)


@errors.exits_on_user_error
def main() -> None:
    """Reads the flags and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--output_dir", required=True)
    args = parser.parse_args()
    count = write_part(tasks.get(args.task), args.data_dir, args.batch, args.fraction, args.output_dir)
    print(f"{args.task}: {count} examples in {args.output_dir}")


if __name__ == "__main__":
    main()
