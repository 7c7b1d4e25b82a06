"""What the three PyTorch sides share: a Hugging Face BERT, a batch, the plain training loop."""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any, Callable, Iterator, List, Mapping

# Where TensorFlow is installed too, transformers would load it: time and memory that are not its own.
os.environ["USE_TF"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from benchmarks.sides import common

CLIP_NORM = 1.0
Tensors = Mapping[str, torch.Tensor]
# A model -> the same, ready to train what is to be trained.
Prepare = Callable[[Any], Any]


def random_model(job: common.Job) -> Any:
    """A BERT with random weights. The activation is Hugging Face's default, the exact GELU, in one fused kernel."""
    torch.manual_seed(job.get("seed", 1))
    config = transformers.BertConfig(num_labels=common.CLASSES, **job["config"])
    return transformers.BertForSequenceClassification(config)


def make_optimizer(model: Any) -> torch.optim.Optimizer:
    """AdamW in one fused kernel: the default of transformers' Trainer with this torch."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)


def train_step(model: Any, optimizer: torch.optim.Optimizer, inputs: Tensors) -> float:
    """Forward, backward, clipping, update."""
    loss = model(**inputs).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def count_trained(model: Any) -> int:
    """Parameters that get a gradient."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def attention_of(model: Any) -> str:
    """Which implementation of attention the library has chosen."""
    name = next(name for name, _ in model.named_modules() if name.endswith("attention.self"))
    return type(model.get_submodule(name)).__name__


def measure_steps(job: common.Job, prepare: Prepare) -> common.Result:
    """Training steps on random weights and one random batch."""
    model = prepare(random_model(job)).train()
    optimizer = make_optimizer(model)
    batch = common.random_batch(job)
    names = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "segments", "labels": "labels"}
    inputs = {theirs: torch.tensor(batch[name]) for theirs, name in names.items()}
    result = common.timed_steps(lambda: train_step(model, optimizer, inputs), job)
    return dict(result, trained=count_trained(model), attention=attention_of(model))


def grouped_batches(job: common.Job, encoded: List[dict], tokenizer: Any) -> Iterator[Tensors]:
    """Batches of sequences of like length, padded to their longest: the Trainer's `group_by_length`."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator()
    generator.manual_seed(job.get("seed", 1))
    lengths = [len(row["input_ids"]) for row in encoded]
    sampler = LengthGroupedSampler(job["batch"], lengths=lengths, generator=generator)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    return torch.utils.data.DataLoader(
        encoded, job["batch"], sampler=sampler, collate_fn=collate, drop_last=True
    )  # fmt: skip


def measure_epoch(job: common.Job, prepare: Prepare) -> common.Result:
    """One epoch over real texts on a real base: time of the loop, the making of batches included."""
    torch.manual_seed(job.get("seed", 1))
    with open(job["examples_file"], encoding="utf-8") as file:
        examples = json.load(file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["hf_dir"])
    second = [row["text_b"] for row in examples] if examples[0]["text_b"] is not None else None
    columns = tokenizer([row["text_a"] for row in examples], second, truncation=True, max_length=job["length"])
    rows = zip(*columns.values())
    encoded = [dict(zip(columns, row), labels=example["label"]) for row, example in zip(rows, examples)]
    transformers.utils.logging.set_verbosity_error()
    model = transformers.BertForSequenceClassification.from_pretrained(job["hf_dir"], num_labels=common.CLASSES)
    model = prepare(model).train()
    optimizer = make_optimizer(model)
    total = len(encoded) // job["batch"]
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, total // 10, total)
    begun, steps = time.perf_counter(), 0
    for inputs in grouped_batches(job, encoded, tokenizer):
        train_step(model, optimizer, inputs)
        schedule.step()
        steps += 1
    seconds = time.perf_counter() - begun
    return {"seconds": [seconds], "steps": steps, "trained": count_trained(model), "attention": attention_of(model)}


def measure_sizes(job: common.Job, prepare: Prepare, save: Callable[[Any, str], None]) -> common.Result:
    """What a task takes on disk: the folder that the library writes."""
    model = prepare(random_model(job))
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        return {"bytes": common.folder_bytes(folder), "trained": count_trained(model)}
