"""Small packs, and their files as another tool would write or damage them."""

from __future__ import annotations

import hashlib
import json
import struct

import hypothesis
import numpy as np

from adapter_bert.weights import packs
from tests import reference_model
from tests.helpers import make_pack, tiny_config

# So small that reading a pack takes about a millisecond.
SMALLEST = tiny_config(
    vocab_size=5, hidden_size=4, num_hidden_layers=1, intermediate_size=4, max_position_embeddings=4
).to_dict()
ZEROS = "0" * 64
FUZZ = hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


def smallest(**changes) -> packs.Pack:
    return make_pack(
        **dict({"architecture": SMALLEST, "max_seq_length": 4, "adapter": {"size": 2, "layers": [0]}}, **changes)
    )


def reference_shapes(config: packs.PackConfig) -> dict:
    """The variables that a pack should hold."""
    architecture = dict(tiny_config().to_dict(), **config.architecture)
    head = reference_model.head_shapes(architecture, config.head, config.labels)
    return reference_model.trained_shapes(
        architecture, config.tuning_mode, head, config.adapter, config.tune_top_layers
    )


def assert_same(found: packs.Pack, expected: packs.Pack) -> None:
    assert found.config == expected.config
    assert set(found.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == np.float32
        assert found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes(), name


def split(data: bytes):
    """Return the three parts of a pack's file: configuration, header entries of the tensors, numbers."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size].decode("utf-8"))
    values = json.loads(header.pop("__metadata__")[packs.METADATA_KEY])
    return values, header, data[8 + size :]


def sign(header: bytes, numbers: bytes = b"") -> bytes:
    """Return a safetensors file with this header, in which 64 zeros become the right checksum."""
    header += b" " * (-len(header) % 8)
    data = struct.pack("<Q", len(header)) + header + numbers
    return data.replace(ZEROS.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def join(values, entries, numbers: bytes, checksum=ZEROS) -> bytes:
    """Invert `split`, with a valid checksum whatever the parts are."""
    text = json.dumps(dict(values, checksum=checksum))
    return sign(json.dumps(dict({"__metadata__": {packs.METADATA_KEY: text}}, **entries)).encode("utf-8"), numbers)


def with_tensors(content: bytes, tensors) -> bytes:
    """Return the pack with other tensors, whatever their types, and a valid checksum."""
    kinds = {"float16": "F16", "float32": "F32", "float64": "F64", "int32": "I32"}
    entries, numbers = {}, b""
    # The widest first: some readers require alignment.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        offsets = [len(numbers), len(numbers) + tensor.nbytes]
        entries[name] = {"dtype": kinds[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
        numbers += tensor.tobytes()
    return join(split(content)[0], entries, numbers)


def with_config(content: bytes, **changes) -> bytes:
    """Return the pack with other values in its configuration and a valid checksum."""
    values, entries, numbers = split(content)
    return join(dict(values, **changes), entries, numbers)


def write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def nudged(tensors, name: str) -> dict:
    """Return the tensors with the least possible change of one number."""
    tensor = tensors[name].copy()
    tensor.flat[tensor.size // 2] = np.nextafter(tensor.flat[tensor.size // 2], np.float32(9))
    return dict(tensors, **{name: tensor})
