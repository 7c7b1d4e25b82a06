"""Training follows Google's adapter-bert: the same losses and weights over 30 steps.

Needs TensorFlow 1.15 and a checkout of github.com/google-research/adapter-bert, whose path is in the environment
variable ADAPTER_BERT_GOOGLE_DIR. The same program runs in both projects, because ours has the names of the original.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from adapter_bert.devices import compat
from tests.helpers import ROOT

GOOGLE = os.environ.get("ADAPTER_BERT_GOOGLE_DIR", "")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not os.path.isdir(GOOGLE), reason="ADAPTER_BERT_GOOGLE_DIR is not a checkout of adapter-bert"),
    pytest.mark.skipif(compat.tensorflow_version() >= (2, 0), reason="adapter-bert needs TensorFlow 1"),
]

# Arguments: output file, number of steps, checkpoint to start from or to write.
PROGRAM = """
import os, sys
output, steps, checkpoint = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sys.argv = sys.argv[:1]
import numpy as np
import tensorflow as tf
import modeling, run_classifier

tf.set_random_seed(1)
tf.train.create_global_step()
step = tf.placeholder_with_default(tf.constant(0, tf.int64), [])
random = np.random.RandomState(1)
ids = random.randint(5, 50, [30, 8, 12])
mask = (np.arange(12) < random.randint(3, 13, [30, 8, 1])).astype(np.int32)
arrays = {
    "input_ids": ids * mask,
    "input_mask": mask,
    "segment_ids": (np.arange(12) > 6) * mask,
    "label_ids": random.randint(0, 2, [30, 8]),
}
dataset = tf.data.Dataset.from_tensor_slices({name: array.astype(np.int32) for name, array in arrays.items()})
# The head's dropout has a fixed rate, and the projects draw different masks.
if "adapter_bert" in sys.modules:
    sys.modules["adapter_bert.model.heads"].dropout = lambda x, rate: x
else:
    tf.nn.dropout = lambda x, *args, **kwargs: x
    # The original increments the counter while the learning rate reads it, so that the rate is that of either step.
    step.assign = lambda value: tf.no_op()
    tf.train.get_or_create_global_step = lambda: step
features = tf.data.make_one_shot_iterator(dataset).get_next()
config = modeling.BertConfig(50, 32, 2, 4, 64, "gelu", 0.0, 0.0, 16, 2)
start = checkpoint if steps else None
model_fn = run_classifier.model_fn_builder(config, 2, start, 1e-3, 30, 3, False, False)
spec = model_fn(features, None, tf.estimator.ModeKeys.TRAIN, {"batch_size": 8})
scaffold = spec.scaffold_fn() if spec.scaffold_fn else tf.train.Scaffold()
variables = {v.name: v for v in tf.global_variables() if v.name != "global_step:0"}
saver = tf.train.Saver([v for v in variables.values() if "adam_" not in v.name])
creator = tf.train.ChiefSessionCreator(scaffold)
with tf.train.MonitoredSession(creator, list(spec.training_hooks or [])) as session:
    losses = [session.run([spec.loss, spec.train_op], {step: i})[0] for i in range(steps)]
    values = session.run(variables)
    if not steps:
        saver.save(session._tf_sess(), checkpoint, write_state=False)
np.savez(output, **{"losses": losses, "project": os.path.dirname(modeling.__file__), **values})
"""


def train(project: str, folder: str, name: str, steps: int) -> dict:
    """Run the program in a project; return the losses and all variables."""
    output = os.path.join(folder, name + ".npz")
    command = [sys.executable, "-c", PROGRAM, output, str(steps), os.path.join(folder, "start.ckpt")]
    subprocess.run(command, cwd=folder, env=dict(os.environ, PYTHONPATH=project), check=True)
    with np.load(output) as found:
        return {key: found[key] for key in found.files}


def test_losses_and_weights_are_those_of_adapter_bert(tmp_path):
    train(GOOGLE, str(tmp_path), "start", 0)
    google, ours = train(GOOGLE, str(tmp_path), "google", 30), train(ROOT, str(tmp_path), "ours", 30)
    assert os.path.samefile(str(google.pop("project")), GOOGLE) and os.path.samefile(str(ours.pop("project")), ROOT)
    assert google["losses"].std() > 0.01  # the batches differ
    start = np.load(str(tmp_path / "start.npz"))
    weights = [name for name in google if name.endswith(":0") and "adam_" not in name]
    trained = [name for name in weights if np.abs(google[name] - start[name]).max() > 1e-5]
    assert sum("adapters" in name for name in trained) == 16 and len(trained) == 16 + 2 * 5 + 2
    differences = {name: np.abs(ours[name] - google[name]).max() for name in ("losses", *weights)}
    worst = max(differences, key=differences.get)
    print(f"Largest difference: {differences[worst]:.1e} ({worst}); of a loss: {differences['losses']:.1e}")
    assert differences[worst] < 2e-6 and differences["losses"] < 1e-6
