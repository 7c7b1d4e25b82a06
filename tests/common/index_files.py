"""Indexes of checkpoints that TensorFlow never writes, with correct checksums."""

from __future__ import annotations

import random
import struct
from typing import Any, Dict, List, Optional, Sequence

from tensorflow.core.protobuf import tensor_bundle_pb2

from adapter_bert.common import checkpoint_index

HEADER = tensor_bundle_pb2.BundleHeaderProto(num_shards=1, version={"producer": 1}).SerializeToString()
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FLOAT = 1
LEVELS = ("field", "field", "field", "key", "value", "header", "block", "index", "footer")
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 100, 2**31 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63))


def entry(shape: Sequence[int] = (2,), **fields: Any) -> bytes:
    """Return the entry of a float tensor at the start of the data file; `fields` override what its shape implies."""
    size = 4
    for length in shape:
        size *= length
    values = {"dtype": FLOAT, "shape": {"dim": [{"size": each} for each in shape]}, "size": size % 2**40}
    values["crc32c"] = checkpoint_index._masked_crc32c(bytes(values["size"] % 65))
    return tensor_bundle_pb2.BundleEntryProto(**dict(values, **fields)).SerializeToString()


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes(parts + [number])


def block(items: Dict[bytes, bytes], restarts: Optional[List[int]] = None) -> bytes:
    """Return a block without its trailer. All keys are complete: an entry may always be a restart point."""
    entries = [b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in items.items()]
    restarts = [0] if restarts is None else restarts
    return b"".join(entries) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def with_trailer(content: bytes, kind: bytes = b"\0") -> bytes:
    return content + kind + struct.pack("<I", checkpoint_index._masked_crc32c(content + kind))


def join(
    blocks: Sequence[bytes],
    last_keys: Sequence[bytes] = (b"\xff",),
    index: Optional[bytes] = None,
    footer: Optional[bytes] = None,
) -> bytes:
    """Return an index file with these data blocks; `index` and `footer` replace the right ones."""
    data, handles = b"", {}
    for content, last_key in zip(blocks, last_keys):
        handles[last_key] = varint(len(data)) + varint(len(content))
        data += with_trailer(content)
    index = block(handles) if index is None else index
    places = varint(0) + varint(0) + varint(len(data)) + varint(len(index))
    return data + with_trailer(index) + (places.ljust(40, b"\0") if footer is None else footer) + MAGIC


def index_of(items: Dict[bytes, bytes], header: bytes = HEADER) -> bytes:
    """Return an index file with these entries in one block."""
    return join([block({b"": header, **items})])


def write_checkpoint(folder: Any, index: bytes, data: bytes = bytes(64)) -> str:
    """Write an index and a data file of zeros; return the prefix."""
    (folder / "x.ckpt.index").write_bytes(index)
    (folder / "x.ckpt.data-00000-of-00001").write_bytes(data)
    return str(folder / "x.ckpt")


def mutate(items: Dict[bytes, bytes], generator: random.Random) -> bytes:
    """Return a randomly damaged index file in which all checksums are correct."""
    pairs, level = list(items.items()), generator.choice(LEVELS)
    number = generator.randrange(1, len(pairs))
    key, value = pairs[number]
    if level == "field":
        pairs[number] = key, _with_changed_field(value, generator)
    elif level == "key":
        pairs[number] = _damaged(key, generator), value
    elif level == "value":
        pairs[number] = key, _damaged(value, generator)
    elif level == "header":
        pairs[0] = b"", _damaged(pairs[0][1], generator)
    middle = generator.randrange(1, len(pairs))
    halves = [pairs[:middle], pairs[middle:]]
    blocks, last_keys = [block(dict(half)) for half in halves], [half[-1][0] for half in halves]
    if level == "block":
        chosen = generator.randrange(len(blocks))
        blocks[chosen] = _damaged(blocks[chosen], generator)
    content = join(blocks, last_keys)
    if level == "index":
        return join(blocks, last_keys, index=_damaged(content[sum(len(each) + 5 for each in blocks) : -53], generator))
    if level == "footer":
        return join(blocks, last_keys, footer=_damaged(content[-48:-8], generator)[:40].ljust(40, b"\0"))
    return content


def _with_changed_field(value: bytes, generator: random.Random) -> bytes:
    """Change numbers in an entry; its encoding stays right."""
    message = tensor_bundle_pb2.BundleEntryProto.FromString(value)
    for _ in range(generator.choice([1, 1, 2])):
        number, shape = generator.choice(NUMBERS), message.shape.dim
        extents = [extent for part in message.slices for extent in part.extent]
        field = generator.choice(["dtype", "shard_id", "offset", "size", "crc32c", "dim", "rank", "extent", "slices"])
        if field in ("shard_id", "dtype"):
            setattr(message, field, number % 2**32 - 2**31 if abs(number) > 100 else number)
        elif field in ("offset", "size"):
            setattr(message, field, number)
        elif field == "crc32c":
            message.crc32c = number % 2**32
        elif field == "dim" and shape:
            generator.choice(shape).size = number
        elif field == "rank":
            del shape[: generator.randrange(2)]
            shape.extend([type(shape.add())(size=1)] * generator.choice([0, 1, 9, 260]))
        elif field == "extent" and extents:
            setattr(generator.choice(extents), generator.choice(["start", "length"]), number)
        elif field == "slices":
            message.slices.add().extent.add().length = number
    return message.SerializeToString()


def _damaged(data: bytes, generator: random.Random) -> bytes:
    """Change, insert, remove or repeat a few bytes."""
    result = bytearray(data)
    for _ in range(generator.choice([1, 1, 1, 2, 4])):
        place = generator.randrange(len(result) + 1)
        byte = generator.choice([0, 1, 2, 3, 4, 8, 16, 127, 128, 255, generator.randrange(256)])
        length = generator.choice([1, 1, 1, 2, 5, 10])
        how = generator.choice(["change", "change", "insert", "remove", "number", "repeat"])
        if how == "number":
            result[place : place + 1] = varint(
                generator.choice([0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**64 - 1])
            )
        elif how == "repeat":
            result[place:place] = result[max(0, place - length) : place]
        else:
            result[place : place + (0 if how == "insert" else length)] = b"" if how == "remove" else bytes([byte])
    return bytes(result)
