"""Checkpoints of a run: the file `checkpoint` is not trusted with paths outside the folder."""

from __future__ import annotations

import os

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.weights import checkpoints
from tests.helpers import assert_mentions, message_of


def save(folder: str, *steps: int) -> None:
    """Save checkpoints of a graph with one variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("x", [2])
        session.run(variable.initializer)
        saver = checkpoints.RunSaver([variable])
        for step in steps:
            saver.save(session, os.path.join(folder, "model.ckpt"), global_step=step)


def names(folder) -> set:
    return {name for name in os.listdir(folder) if name.endswith(".index")}


@pytest.fixture
def other(tmp_path) -> str:
    """Another run's folder."""
    (tmp_path / "other").mkdir()
    save(str(tmp_path / "other"), 1, 2, 3)
    return str(tmp_path / "other")


def state(folder) -> str:
    return (folder / "checkpoint").read_text()


def test_the_newest_five_are_kept_and_recorded_by_name(tmp_path):
    save(str(tmp_path), *range(1, 8))
    assert names(tmp_path) == {f"model.ckpt-{step}.index" for step in range(3, 8)}
    lines = [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in range(3, 8)]
    assert state(tmp_path).splitlines() == ['model_checkpoint_path: "model.ckpt-7"', *lines]
    assert tf.train.latest_checkpoint(str(tmp_path)) == checkpoints.find_latest(str(tmp_path))
    assert [name for name in os.listdir(tmp_path) if name.startswith(".") or "tmp" in name] == []


def test_a_relative_folder_is_recorded_in_the_same_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("run")
    save("run", 1, 2)
    assert checkpoints.find_latest("run") == tf.train.latest_checkpoint("run") == os.path.join("run", "model.ckpt-2")


def test_checkpoints_outside_the_folder_are_never_removed(tmp_path, other):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("model.ckpt-5.index", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        (run / name).write_text("")
    recorded = [
        "model.ckpt-" + "1" * 5000,
        f"{other}/model.ckpt-1",
        "../other/model.ckpt-2",
        f"{other}/model.ckpt-3",
        "bert_model.ckpt",
    ] * 3
    lines = ['model_checkpoint_path: "model.ckpt-5"'] + [f'all_model_checkpoint_paths: "{path}"' for path in recorded]
    (run / "checkpoint").write_text("\n".join(lines))
    before = sorted(os.listdir(other))
    checkpoints.remove_leftovers(str(run))
    assert other not in state(run) and ".." not in state(run), "TensorFlow would follow these paths"
    save(str(run), *range(6, 16))
    assert sorted(os.listdir(other)) == before
    assert names(run) == {f"model.ckpt-{step}.index" for step in range(11, 16)} | {"bert_model.ckpt.index"}


def test_the_newest_checkpoint_is_in_the_folder_itself(tmp_path, other):
    os.rename(other, tmp_path / "moved")
    moved = str(tmp_path / "moved")
    (tmp_path / "moved" / "checkpoint").write_text(f'model_checkpoint_path: "{other}/model.ckpt-3"\n')
    assert checkpoints.find_latest(moved) == os.path.join(moved, "model.ckpt-3")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text(f'model_checkpoint_path: "{moved}/model.ckpt-3"\n')
    message = message_of(checkpoints.find_latest, str(tmp_path / "run"))
    assert_mentions(message, tmp_path / "run" / "checkpoint", tmp_path / "run" / "model.ckpt-3.index")


def test_a_fifo_in_place_of_the_state_file_is_never_opened(tmp_path, deadline):
    os.mkfifo(str(tmp_path / "checkpoint"))
    assert_mentions(message_of(checkpoints.find_latest, str(tmp_path)), tmp_path / "checkpoint", "FIFO")
