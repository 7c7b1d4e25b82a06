"""This project. A step is the graph of a run in the session of a run; an epoch is the command line itself."""

from __future__ import annotations

import json
import os
import sys
import tempfile

from adapter_bert.common import system

system.configure_tensorflow()

from benchmarks.sides import common

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Far enough away that the learning rate hardly falls.
SCHEDULED_STEPS = 10000


def make_features(job: common.Job) -> dict:
    """A batch as the input pipeline yields it: from a dataset, so that nothing of it is a constant of the graph."""
    import tensorflow.compat.v1 as tf

    batch = common.random_batch(job)
    arrays = {
        "input_ids": batch["ids"].astype("int32"),
        "input_mask": batch["mask"].astype("int32"),
        "segment_ids": batch["segments"].astype("int32"),
        "label_ids": batch["labels"].astype("int32"),
        "is_real_example": batch["labels"].astype("int32") * 0 + 1,
    }
    dataset = tf.data.Dataset.from_tensors(arrays).repeat()
    features = tf.data.make_one_shot_iterator(dataset).get_next()
    if job.get("unknown_length"):  # as in batches of sequences of like length
        for name in ("input_ids", "input_mask", "segment_ids"):
            features[name] = tf.placeholder_with_default(features[name], [job["batch"], None])
    return features


def step(job: common.Job) -> common.Result:
    """Training steps on random weights; `tuning` is a `--tuning_mode`, `model_fn` holds further arguments."""
    import run_classifier  # noqa: F401  (first: what an entry point sets for TensorFlow must hold here too)

    import tensorflow.compat.v1 as tf  # isort: skip

    import modeling
    import optimization
    from adapter_bert.devices import estimators
    from adapter_bert.model.heads import ClassificationHead
    from adapter_bert.training.model_fn import Schedule, build_model_fn
    from adapter_layers import AdapterConfig

    adapter = AdapterConfig(size=job["adapter_size"]) if job["tuning"] == "adapter" else None
    with tf.Graph().as_default():
        tf.set_random_seed(job.get("seed", 1))
        tf.train.create_global_step()
        model_fn = build_model_fn(
            modeling.BertConfig(**job["config"]),
            ClassificationHead(common.CLASSES),
            adapter,
            init_checkpoint=None,
            schedule=Schedule(1e-4, SCHEDULED_STEPS, 0),
            tuning_mode=job["tuning"],
            **job.get("model_fn", {}),
        )
        spec = model_fn(make_features(job), None, estimators.ModeKeys.TRAIN, {})
        trained = optimization.trainable_variables(job["tuning"])
        with tf.Session(config=estimators.session_config()) as session:
            session.run(tf.global_variables_initializer())
            result = common.timed_steps(lambda: session.run([spec.loss, spec.train_op])[0], job)
    result["trained"] = sum(variable.shape.num_elements() for variable in trained)
    return result


def epoch_command(job: common.Job, folder: str) -> list:
    """The command line of one epoch in a folder."""
    base = job["base_dir"]
    return [
        sys.executable,
        os.path.join(ROOT, "run_classifier.py"),
        f"--task_name={job['task']}",
        "--do_train=true",
        f"--data_dir={job['data_dir']}",
        f"--vocab_file={base}/vocab.txt",
        f"--bert_config_file={base}/bert_config.json",
        f"--init_checkpoint={base}/bert_model.ckpt",
        f"--max_seq_length={job['length']}",
        f"--train_batch_size={job['batch']}",
        f"--adapter_size={job['adapter_size']}",
        "--num_train_epochs=1",
        "--learning_rate=3e-4",
        f"--seed={job.get('seed', 1)}",
        f"--feature_cache_dir={folder}/features",
        f"--output_dir={folder}/run",
        *job.get("flags", []),
    ]


def epoch(job: common.Job) -> common.Result:
    """One epoch by the command line; `flags` holds further ones. Time of its steps alone."""
    with tempfile.TemporaryDirectory() as folder:
        result = common.run_command(epoch_command(job, folder), os.path.join(folder, "log"), ROOT)
        with open(os.path.join(folder, "run", "training.json")) as file:
            history = json.load(file)
    return dict(result, seconds=[history["seconds"]], steps=history["steps"])


def sizes(job: common.Job) -> common.Result:
    """What a task takes on disk: the pack of an adapter, or a checkpoint of the original kind."""
    import modeling
    from adapter_bert.model import parameters
    from adapter_bert.model.heads import ClassificationHead
    from adapter_bert.weights import packs
    from benchmarks import packs as pack_benchmark

    config = modeling.BertConfig(**job["config"])
    if job["tuning"] == "full":
        shapes = parameters.model_shapes(config, ClassificationHead(common.CLASSES), None)
        # All variables, and two slots of Adam for each: what the original saves. Names and checksums come on top.
        return {"bytes": 3 * 4 * parameters.count(shapes), "trained": parameters.count(shapes)}
    described = pack_benchmark.describe_pack(config, "adapter", job["adapter_size"])
    pack = packs.Pack(described, pack_benchmark.random_tensors(packs.expected_shapes(described), 1))
    with tempfile.TemporaryDirectory() as folder:
        packs.write(os.path.join(folder, "pack" + packs.ENDING), pack)
        return {"bytes": common.folder_bytes(folder), "trained": pack.num_parameters}


if __name__ == "__main__":
    common.answer({"step": step, "epoch": epoch, "sizes": sizes}, sys.argv)
