"""The PyTorch sides: AdapterHub, PEFT's LoRA and full fine-tuning with Hugging Face, in one plain training loop.

AdapterHub trains the same parameters as ours: its DoubleSeqBn adapters, the head and also the LayerNorms, which the
library would leave frozen. LoRA is another method, with about as many trained parameters. Everything else is left as
the libraries have it. The precision bfloat16 is PyTorch's autocast.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

# transformers would load TensorFlow where it is installed, and count its time and memory.
os.environ["USE_TF"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from benchmarks.sides import common

CLIP_NORM = 1.0
NAME = "task"


def lora_rank(config: Mapping[str, int], adapter_size: int) -> int:
    """Return the rank with which LoRA has about as many parameters as adapters and LayerNorms."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    adapters = 2 * layers * (2 * adapter_size * width + width + adapter_size)
    norms = 2 * width * (2 * layers + 1)
    # Two matrices, [width, rank] and [rank, width], for each of the two projections of a layer.
    return max(1, round((adapters + norms) / (2 * layers * 2 * width)))


def add_adapters(model: Any, adapter_size: int) -> Any:
    """Add AdapterHub's adapters and train them, the LayerNorms and the head."""
    import adapters

    # The library warns about inactive adapters before it activates them.
    logging.getLogger("adapters").setLevel(logging.ERROR)
    adapters.init(model)
    reduction = model.config.hidden_size // adapter_size
    model.add_adapter(NAME, adapters.DoubleSeqBnConfig(reduction_factor=reduction, non_linearity="gelu"))
    model.train_adapter(NAME)
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name:
            parameter.requires_grad = True
    return model


def prepare(model: Any, job: common.Job) -> Any:
    """Return the model with the job's method applied."""
    if job["method"] == "adapterhub":
        return add_adapters(model, job["adapter_size"])
    if job["method"] == "lora":
        import peft

        rank = lora_rank(model.config.to_dict(), job["adapter_size"])
        modules = ["query", "value"]
        config = peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, r=rank, lora_alpha=rank, target_modules=modules)
        return peft.get_peft_model(model, config)
    return model


def random_model(job: common.Job) -> Any:
    """Return a BERT with random weights and Hugging Face's default activation, the exact GELU in a fused kernel."""
    torch.manual_seed(job["seed"])
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=common.CLASSES, **job["config"])
    )


def trained_parameters(model: Any) -> List[torch.Tensor]:
    """Return the parameters that get a gradient."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def make_optimizer(model: Any) -> torch.optim.Optimizer:
    """Return fused AdamW, the default of transformers' Trainer."""
    return torch.optim.AdamW(trained_parameters(model), lr=3e-4, weight_decay=0.01, fused=True)


def autocast(job: common.Job) -> Any:
    """Return a context with the precision of the job."""
    return torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bfloat16")


def train_step(
    model: Any, optimizer: torch.optim.Optimizer, inputs: Mapping[str, torch.Tensor], job: common.Job
) -> float:
    """Run forward, backward, clipping and update; return the loss."""
    with autocast(job):
        loss = model(**inputs).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained_parameters(model), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def step(job: common.Job) -> common.Result:
    """Time training steps on random weights and one random batch."""
    model = prepare(random_model(job), job).train()
    optimizer = make_optimizer(model)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")  # in the order of the batch
    inputs = dict(zip(names, map(torch.tensor, common.random_batch(job).values())))
    result = common.timed_steps(lambda: train_step(model, optimizer, inputs, job), job)
    return dict(result, trained=sum(parameter.numel() for parameter in trained_parameters(model)))


def read_examples(path: str) -> List[Dict[str, Any]]:
    """Return the examples in a file that `suites.write_part` wrote."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def tokenize(tokenizer: Any, examples: Sequence[Mapping[str, Any]], length: int) -> Any:
    """Return the fast tokenizer's columns for all examples."""
    second = [row["text_b"] for row in examples] if examples[0]["text_b"] is not None else None
    return tokenizer([row["text_a"] for row in examples], second, truncation=True, max_length=length)


def grouped_batches(job: common.Job, encoded: List[dict], tokenizer: Any) -> Iterator[Mapping[str, torch.Tensor]]:
    """Yield batches of similar length, padded to their longest sequence: the Trainer's `group_by_length`."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator()
    generator.manual_seed(job["seed"])
    lengths = [len(row["input_ids"]) for row in encoded]
    sampler = LengthGroupedSampler(job["batch"], lengths=lengths, generator=generator)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    yield from torch.utils.data.DataLoader(encoded, job["batch"], sampler=sampler, collate_fn=collate, drop_last=True)


def load(job: common.Job) -> Tuple[Any, Any]:
    """Return the model, on a real base and with the job's method applied, and its tokenizer."""
    torch.manual_seed(job["seed"])
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["hf_dir"])
    model = transformers.BertForSequenceClassification.from_pretrained(job["hf_dir"], num_labels=common.CLASSES)
    return prepare(model, job).train(), tokenizer


def encode(tokenizer: Any, examples: Sequence[Mapping[str, Any]], job: common.Job) -> List[Dict[str, Any]]:
    """Return the ids and the label of each example."""
    columns = tokenize(tokenizer, examples, job["length"])
    return [dict(zip(columns, row), labels=example["label"]) for row, example in zip(zip(*columns.values()), examples)]


def train(model: Any, tokenizer: Any, encoded: List[dict], job: common.Job, epochs: int) -> int:
    """Train for whole epochs with a linear warmup and decay; return the number of steps."""
    optimizer = make_optimizer(model)
    total = len(encoded) // job["batch"] * epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, total // 10, total)
    for _ in range(epochs):
        for inputs in grouped_batches(job, encoded, tokenizer):
            train_step(model, optimizer, inputs, job)
            schedule.step()
    return total


def epoch(job: common.Job) -> common.Result:
    """Time one epoch over real texts on a real base, including the making of batches."""
    model, tokenizer = load(job)
    encoded = encode(tokenizer, read_examples(job["examples_file"]), job)
    started = time.perf_counter()
    steps = train(model, tokenizer, encoded, job, 1)
    return {"seconds": [time.perf_counter() - started], "examples": steps * job["batch"]}


def run(job: common.Job) -> common.Result:
    """Train one seed, evaluate the dev split in batches of similar length, and save the adapter."""
    model, tokenizer = load(job)
    encoded = encode(tokenizer, read_examples(job["examples_file"]), job)
    steps = train(model, tokenizer, encoded, job, round(job["epochs"]))
    model.eval()
    dev = sorted(encode(tokenizer, read_examples(job["dev_file"]), job), key=lambda row: len(row["input_ids"]))
    collate, correct = transformers.DataCollatorWithPadding(tokenizer), 0
    with torch.inference_mode():
        for start in range(0, len(dev), 64):
            inputs = collate(dev[start : start + 64])
            labels = inputs.pop("labels")
            correct += int((model(**inputs).logits.argmax(-1) == labels).sum())
    with tempfile.TemporaryDirectory() as folder:
        model.save_adapter(folder, NAME)
    return {"examples": steps * job["batch"], "accuracy": correct / len(dev)}


def sweep(job: common.Job) -> common.Result:
    """Time one process for each seed, one after another, as a shell loop runs them."""
    results, started = [], time.perf_counter()
    for seed in job["seeds"]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.sides.torch_sides",
            json.dumps({**job, "kind": "run", "seed": seed}),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        "seconds": [time.perf_counter() - started],
        "examples": sum(result["examples"] for result in results),
        "scores": [result["accuracy"] for result in results],
        "peak_bytes": max(result["peak_bytes"] for result in results),
    }


def features(job: common.Job) -> common.Result:
    """Time the fast tokenizer on the whole list of texts; the ids stay in memory."""
    examples = read_examples(job["examples_file"])
    tokenizer = transformers.BertTokenizerFast(os.path.join(job["base_dir"], "vocab.txt"), do_lower_case=True)
    started = time.perf_counter()
    tokenize(tokenizer, examples, job["length"])
    return {"seconds": [time.perf_counter() - started], "examples": len(examples)}


def predict(job: common.Job) -> common.Result:
    """Time warm predictions of BertForSequenceClassification without adapters, in batches of similar length."""
    model = transformers.BertForSequenceClassification.from_pretrained(job["hf_dir"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["hf_dir"])

    def predict_texts(texts: List[str], batch_size: int) -> List[List[float]]:
        found: List[List[float]] = []
        texts = sorted(texts, key=len)
        with torch.inference_mode(), autocast(job):
            for start in range(0, len(texts), batch_size):
                batch = texts[start : start + batch_size]
                inputs = tokenizer(batch, truncation=True, max_length=job["length"], padding=True, return_tensors="pt")
                found.extend(model(**inputs).logits.float().softmax(-1).tolist())
        return found

    return common.timed_predictions(predict_texts, job)


def tasks(job: common.Job) -> common.Result:
    """Time sentences of several tasks in batches of similar length, with the library's way to mix adapters in a batch.

    AdapterHub's BatchSplit needs the sentences of a task to be adjacent; PEFT takes a name for each sentence. All tasks
    share one head.
    """
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("adapters").setLevel(logging.ERROR)
    torch.manual_seed(job["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["hf_dir"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(job["hf_dir"], num_labels=common.CLASSES)
    run = (with_batch_split if job["method"] == "adapterhub" else with_adapter_names)(model, job)

    def predict_texts(texts: List[str], numbers: List[int]) -> List[List[float]]:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found: Dict[int, List[float]] = {}
        for start in range(0, len(order), job["predict_batch"]):
            batch = sorted(order[start : start + job["predict_batch"]], key=lambda index: numbers[index])
            chosen = [texts[index] for index in batch]
            inputs = tokenizer(chosen, truncation=True, max_length=job["length"], padding=True, return_tensors="pt")
            with torch.inference_mode(), autocast(job):
                logits = run(inputs, [f"task{numbers[index]}" for index in batch])
            found.update(zip(batch, logits.float().softmax(-1).tolist()))
        return [found[index] for index in range(len(texts))]

    return common.timed_tasks(predict_texts, job)


def with_batch_split(model: Any, job: common.Job) -> Any:
    """Add AdapterHub's adapters, one for each task; return a function from inputs and names to logits."""
    import adapters
    from adapters.composition import BatchSplit

    adapters.init(model)
    reduction = model.config.hidden_size // job["adapter_size"]
    for number in range(job["tasks"]):
        model.add_adapter(f"task{number}", adapters.DoubleSeqBnConfig(reduction_factor=reduction, non_linearity="gelu"))
    model.eval()

    def run(inputs: Any, names: List[str]) -> torch.Tensor:
        counts = {name: names.count(name) for name in names}
        first, *others = counts
        split = BatchSplit(first, *others, batch_sizes=list(counts.values())) if others else first
        model.set_active_adapters(split)
        return model(**inputs).logits

    return run


def with_adapter_names(model: Any, job: common.Job) -> Any:
    """Add LoRA with about as many parameters for each task; return a function from inputs and names to logits."""
    import peft

    rank = lora_rank(model.config.to_dict(), job["adapter_size"])
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["query", "value"], init_lora_weights=False)
    model = peft.get_peft_model(model, config, adapter_name="task0")
    for number in range(1, job["tasks"]):
        model.add_adapter(f"task{number}", config)
    model.eval()
    return lambda inputs, names: model(**inputs, adapter_names=names).logits


def sizes(job: common.Job) -> common.Result:
    """Measure the folder that the library writes for a task. (AdapterHub does not save LayerNorms with an adapter.)"""
    model = prepare(random_model(job), job)
    with tempfile.TemporaryDirectory() as folder:
        if job["method"] == "adapterhub":
            model.save_adapter(folder, NAME)
        else:
            model.save_pretrained(folder)
        return {"bytes": common.folder_bytes(folder)}


if __name__ == "__main__":
    kinds = {"step": step, "epoch": epoch, "run": run, "sweep": sweep, "features": features, "predict": predict}
    common.answer({**kinds, "tasks": tasks, "sizes": sizes}, sys.argv)
