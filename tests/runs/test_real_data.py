"""Real data and real weights, where the checkout has them beside it. Minutes: marked slow."""

from __future__ import annotations

import os

import pytest

from tests.helpers import SHARED, read_results, run_command

BASE = os.path.join(SHARED, "weights", "e5-small")
COLA = os.path.join(SHARED, "data", "glue_data", "CoLA")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir(BASE) or not os.path.isdir(COLA), reason=f"needs {BASE} and {COLA}")
def test_adapters_on_a_real_bert_learn_cola(tmp_path):
    """Two epochs in small batches: the score leaves the majority class (0) far behind."""
    flags = {
        "task_name": "CoLA", "data_dir": COLA, "output_dir": str(tmp_path / "run"), "seed": 1,
        "vocab_file": os.path.join(BASE, "vocab.txt"), "bert_config_file": os.path.join(BASE, "bert_config.json"),
        "init_checkpoint": os.path.join(BASE, "bert_model.ckpt"), "do_train": True, "do_eval": True,
        "max_seq_length": 20, "train_batch_size": 8, "eval_batch_size": 64,
        "learning_rate": 2e-4, "num_train_epochs": 2.0,
    }  # fmt: skip
    process = run_command(flags)
    assert process.returncode == 0, process.stdout
    assert read_results(flags["output_dir"])["eval_matthews"] > 0.15
