"""This project. A step is the graph of a run in the session of a run; an epoch is the command line itself."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from typing import Any, Dict, List, Tuple

from adapter_bert.common import system

system.configure_tensorflow()

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import optimization
import tokenization
from adapter_bert import tasks
from adapter_bert.devices import estimators
from adapter_bert.experiments import cells
from adapter_bert.model import parameters
from adapter_bert.model.heads import ClassificationHead
from adapter_bert.model.spec import ModelSpec
from adapter_bert.pipeline.feature_store import FeatureStore
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.task_predictor import TaskPredictor
from adapter_bert.training.model_fn import ModelFn, Schedule, TrainingPlan
from adapter_bert.weights import bases, fingerprints, packs
from adapter_layers import AdapterConfig
from benchmarks.sides import common

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# So many that the learning rate hardly changes.
SCHEDULED_STEPS = 10000


def make_features(job: common.Job) -> Dict[str, tf.Tensor]:
    """Return a batch from a dataset, as the input pipeline yields it: it is not a constant of the graph."""
    arrays = {name: values.astype("int32") for name, values in common.random_batch(job).items()}
    arrays["is_real_example"] = np.ones_like(arrays["label_ids"])
    return tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(arrays).repeat()).get_next()


def step(job: common.Job) -> common.Result:
    """Time training steps on random weights; `plan` holds further arguments of the training plan."""
    adapter = AdapterConfig(size=job["adapter_size"]) if job["tuning"] == "adapter" else None
    with tf.Graph().as_default():
        tf.set_random_seed(job["seed"])
        tf.train.create_global_step()
        config, head = modeling.BertConfig(**job["config"]), ClassificationHead(common.CLASSES)
        plan = TrainingPlan(Schedule(1e-4, SCHEDULED_STEPS, 0), **job.get("plan", {}))
        model = ModelSpec(config, head, adapter, job["tuning"], precision=job["precision"])
        model_fn = ModelFn(model, plan=plan)
        spec = model_fn(make_features(job), None, estimators.ModeKeys.TRAIN, {})
        trained = optimization.trainable_variables(job["tuning"])
        with tf.Session(config=estimators.session_config()) as session:
            session.run(tf.global_variables_initializer())
            result = common.timed_steps(lambda: session.run([spec.loss, spec.train_op])[0], job)
    return dict(result, trained=sum(variable.shape.num_elements() for variable in trained))


def epoch(job: common.Job) -> common.Result:
    """Run one epoch with `run_classifier.py` and return the time of its steps; `flags` holds further flags."""
    result, history = _run_classifier(job, "--num_train_epochs=1")
    return dict(result, seconds=[history["seconds"]], examples=history["examples"])


def sweep(job: common.Job) -> common.Result:
    """Run all seeds with `run_sweep.py` and return the wall-clock time of the whole command."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sweep.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"tasks = [{json.dumps(job['task'])}]\nseeds = {job['seeds']}\n\n[method.adapters]\n")
        command = [sys.executable, os.path.join(ROOT, "scripts", "run_sweep.py"), f"--sweep={path}"]
        command += [*_run_flags(job), f"--output_dir={folder}/sweep", f"--num_train_epochs={job['epochs']}"]
        result = common.run_command(command, os.path.join(folder, "log"), ROOT)
        scores = [cell.dev for cell in cells.read(os.path.join(folder, "sweep", "results.csv"))]
    with open(job["examples_file"], encoding="utf-8") as file:
        examples = len(json.load(file))
    seconds = [time.perf_counter() - started]
    return dict(result, seconds=seconds, scores=scores, examples=examples * job["epochs"] * len(job["seeds"]))


def cache(job: common.Job) -> common.Result:
    """As `epoch`, with or without `--cache_frozen_layers`, which computes its cache before the first step."""
    cached = f"--cache_frozen_layers={job['cached']}"
    result, history = _run_classifier(job, "--num_train_epochs=1", *job["mode"], cached)
    return dict(result, seconds=[history["seconds"]], examples=history["examples"])


def fixed(job: common.Job) -> common.Result:
    """Train a few steps and evaluate, and return all other time: from the start to the first step, and to the exit."""
    started = time.perf_counter()
    result, history = _run_classifier(job, "--num_train_epochs=0.1", "--do_eval=true", "--eval_batch_size=64")
    return dict(result, seconds=[time.perf_counter() - started - history["seconds"]])


def _run_classifier(job: common.Job, *flags: str) -> Tuple[common.Result, Dict[str, Any]]:
    """Train with `run_classifier.py`; return its peak memory, and the history of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            os.path.join(ROOT, "run_classifier.py"),
            f"--task_name={job['task']}",
            "--do_train=true",
            *_run_flags(job),
            f"--seed={job['seed']}",
            f"--feature_cache_dir={folder}/features",
            f"--output_dir={folder}/run",
            *flags,
            *job.get("flags", []),
        ]
        result = common.run_command(command, os.path.join(folder, "log"), ROOT)
        with open(os.path.join(folder, "run", "training.json")) as file:
            return result, json.load(file)


def _run_flags(job: common.Job) -> List[str]:
    base = job["base_dir"]
    return [
        f"--data_dir={job['data_dir']}",
        f"--vocab_file={base}/vocab.txt",
        f"--bert_config_file={base}/bert_config.json",
        f"--init_checkpoint={base}/bert_model.ckpt",
        f"--max_seq_length={job['length']}",
        f"--train_batch_size={job['batch']}",
        f"--adapter_size={job['adapter_size']}",
        f"--precision={job['precision']}",
        "--learning_rate=3e-4",
    ]


def features(job: common.Job) -> common.Result:
    """Time the way from texts in memory to TFRecord files, with a new tokenizer."""
    task = tasks.get(job["task"])
    examples = list(tasks.read_examples(task, job["data_dir"], "train"))
    tokenizer = tokenization.FullTokenizer(os.path.join(job["base_dir"], "vocab.txt"))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        FeatureStore([folder], tokenizer, "").example_files("train", examples, task.labels, job["length"])
        return {"seconds": [time.perf_counter() - started], "examples": len(examples)}


def random_pack(config: modeling.BertConfig, adapter_size: int, tokenizer: Any, length: int = 128) -> packs.Pack:
    """Return a pack with random weights. Time and size do not depend on the values."""
    adapter = {"size": adapter_size, "activation": "gelu", "init_scale": 1e-2, "layers": None, "placement": "both"}
    described = packs.PackConfig(
        task="speed",
        architecture=config.to_dict(),
        tuning_mode="adapter",
        head="classification",
        labels=["0", "1"],
        tokenizer=tokenizer,
        max_seq_length=length,
        base=None,
        created=packs.now(),
        adapter=adapter,
    )
    random = np.random.RandomState(1)
    tensors = {
        name: random.normal(1.0 if name.endswith("gamma") else 0.0, 0.01, shape).astype(np.float32)
        for name, shape in described.trained_shapes().items()
    }
    return packs.Pack(described, tensors)


def pack_on(base: bases.Base, job: common.Job) -> packs.Pack:
    """Return a pack with random weights for a base."""
    pack = random_pack(base.config, job["adapter_size"], base.tokenizer_description, job["length"])
    frozen = fingerprints.combine(base.digests, pack.config.frozen_names())
    return dataclasses.replace(pack, config=dataclasses.replace(pack.config, base=frozen))


def predict(job: common.Job) -> common.Result:
    """Time warm predictions with adapters on the base, tokenization included."""
    base = bases.Base.find(job["base_dir"])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, packs.FILE_NAME)
        packs.write(path, pack_on(base, job))
        with Predictor(base.checkpoint, path, precision=job["precision"]) as predictor:
            return common.timed_predictions(predictor.predict, job)


def many_tasks(job: common.Job) -> common.Result:
    """Time sentences of several tasks, mixed in batches of similar length."""
    base = bases.Base.find(job["base_dir"])
    with TaskPredictor(base, precision=job["precision"]) as predictor:
        for number in range(job["tasks"]):
            predictor.add(f"task{number}", pack_on(base, job))

        def predict(texts: List[str], numbers: List[int]) -> List[Any]:
            examples = [(f"task{number}", text) for number, text in zip(numbers, texts)]
            return predictor.predict(examples, job["predict_batch"])

        return common.timed_tasks(predict, job)


def bank(job: common.Job) -> common.Result:
    """Time the addition of a pack from its file beside other tasks, and measure the memory of all."""
    base = bases.Base.find(job["base_dir"])
    pack, seconds = pack_on(base, job), []
    with TaskPredictor(base, precision=job["precision"]) as predictor, tempfile.TemporaryDirectory() as folder:
        for number in range(job["tasks"]):
            predictor.add(f"task{number}", pack)
        path = os.path.join(folder, packs.FILE_NAME)
        packs.write(path, pack)
        for _ in range(20):
            started = time.perf_counter()
            predictor.add("new", path)
            seconds.append(time.perf_counter() - started)
            predictor.remove("new")
        texts = common.read_sentences(job)
        examples = [(f"task{number % job['tasks']}", text) for number, text in enumerate(texts)]
        assert len(predictor.predict(examples, job["predict_batch"])) == len(texts)
    return {"seconds": seconds}


def sizes(job: common.Job) -> common.Result:
    """Measure a task on disk: a pack, or a checkpoint of the original kind (all variables and two Adam slots each)."""
    config = modeling.BertConfig(**job["config"])
    if job["tuning"] == "full":
        return {"bytes": 3 * 4 * parameters.count(parameters.model_shapes(config, ClassificationHead(2), None))}
    vocabulary = fingerprints.of_text("any")
    tokenizer = {"type": "wordpiece", "do_lower_case": True, "entries": config.vocab_size, "vocabulary": vocabulary}
    pack = random_pack(config, job["adapter_size"], tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        packs.write(os.path.join(folder, packs.FILE_NAME), pack)
        return {"bytes": common.folder_bytes(folder)}


if __name__ == "__main__":
    kinds = {kind.__name__: kind for kind in (step, epoch, sweep, cache, fixed, features, predict, bank, sizes)}
    common.answer({**kinds, "tasks": many_tasks}, sys.argv)
