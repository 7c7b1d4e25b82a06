"""Check the index of a checkpoint before TensorFlow reads it.

TensorFlow trusts `<prefix>.index`: a negative dimension, for example, aborts the process. `read_shapes` parses the file
itself and accepts only what TensorFlow's writer produces:

    file     data blocks, a metadata block, the index block, a footer of 48 bytes
    footer   offset and size of the metadata block and of the index block (varints), zeros, the magic number
    block    entries, positions of the restart points and their number (4 bytes each), a zero byte, a masked CRC-32C
    entry    length of the prefix shared with the previous key, of the rest, of the value (varints), the rest, the value

Keys are sorted. The index block maps a key that is not before the last one of a data block to the block's offset and
size. The data blocks map "" to a `BundleHeaderProto`, and the name of each tensor to a `BundleEntryProto`. The slices
of a partitioned variable have an entry each, with a binary key.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from adapter_bert.common import errors, files, paths

Shape = Tuple[int, ...]

# The index of BERT-large with the slots of Adam has 100 kB. These limits bound time and memory.
MAX_BYTES = 2**20
MAX_ENTRIES = 20_000
MAX_KEY_BYTES = 1000
MAX_RANK = 8  # TensorFlow aborts when it copies a slice with more dimensions
MAX_ELEMENTS = 2**31
MAX_SLICES = 1000  # of one variable; TensorFlow compares them with each other

_FOOTER_BYTES, _TRAILER_BYTES, _MAGIC = 48, 5, 0xDB4775248B80FB57
_FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]
_INTEGERS = [tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
_ITEM_BYTES = {dtype.as_datatype_enum: dtype.size for dtype in _FLOATS + _INTEGERS}
_STRING = tf.string.as_datatype_enum  # e.g. the object graph in checkpoints of TensorFlow 2


def read_shapes(prefix: str) -> Dict[str, Shape]:
    """Return name -> shape of all numeric tensors in a checkpoint, sorted by name.

    Raises:
      errors.UserError: the index is damaged, or does not match the data files.
    """
    path = prefix + ".index"
    data = files.read_bytes(path, f"Cannot read {path}", MAX_BYTES)
    # Otherwise TensorFlow would read something else: the newest checkpoint in the folder, or a format from before 2016.
    if not paths.is_remote(path) and (tf.gfile.IsDirectory(prefix) or not tf.gfile.Glob(path)):
        raise errors.UserError(
            f"TensorFlow cannot read {path}: there must be no folder {prefix}, and no [ or \\ in the names of folders."
        )
    try:
        header, entries = _read_entries(data)
        shapes = {name: _shape_of(name, entry) for name, entry in entries.items()}
        slices = {key for name in entries for key in _check_slices(name, entries, shapes)}
        sizes = _data_sizes(prefix, header.num_shards, {entry.shard_id for entry in entries.values()})
        for name, entry in entries.items():
            size = sizes[entry.shard_id]
            # A tensor that ends behind the file, which was cut off, is an error of TensorFlow; the others are readable.
            if not entry.slices and (entry.offset < 0 or entry.size > size):
                raise ValueError(f"{name!r} is outside of its data file, which has {size} bytes")
            if name not in slices and _is_binary(name):
                raise ValueError(f"the name {name!r} is not UTF-8")
    except (ValueError, IndexError) as error:
        problem = "it ends early" if isinstance(error, IndexError) else errors.reason(error)
        raise errors.UserError(f"The checkpoint {prefix} is damaged and cannot be read: {path}: {problem}.") from None
    return {name: shapes[name] for name in entries if name not in slices and entries[name].dtype != _STRING}


def _read_entries(data: bytes) -> Tuple[Any, Dict[str, Any]]:
    """Return the header, and name -> entry; the binary keys of slices are decoded with `surrogateescape`."""
    values = dict(itertools.islice(_read_table(data), MAX_ENTRIES + 1))
    if len(values) > MAX_ENTRIES:
        raise ValueError(f"it has more than {MAX_ENTRIES} entries")
    header = _parse(BundleHeaderProto, values.pop(b"", b""))
    return header, {_decode(key): _parse(BundleEntryProto, value) for key, value in values.items()}


def _decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _is_binary(name: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in name)


def _read_table(data: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """Yield (key, value) of all data blocks."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end like the index of a checkpoint")
    position = 0
    for _ in range(2):  # the metadata block is never read
        offset, position = _read_varint(footer, position)
        size, position = _read_varint(footer, position)
    previous, end = None, 0
    for last, handle in _read_block(data, offset, size):
        offset, position = _read_varint(handle, 0)
        size, _ = _read_varint(handle, position)
        if offset < end:
            raise ValueError("its blocks overlap")
        end = offset + size
        for key, value in _read_block(data, offset, size):
            if (previous is not None and key <= previous) or key > last:
                raise ValueError(f"its keys are not sorted at {key!r}")
            previous = key
            yield key, value
        previous = last


def _read_block(data: bytes, offset: int, size: int) -> Iterator[Tuple[bytes, bytes]]:
    """Yield (key, value) of the entries of a block."""
    end = offset + size
    block, trailer = data[offset:end], data[end : end + _TRAILER_BYTES]
    if len(trailer) < _TRAILER_BYTES or trailer[0] != 0:
        raise ValueError(f"the block at {offset} is cut off or compressed")
    if struct.unpack("<I", trailer[1:])[0] != _masked_crc32c(block + trailer[:1]):
        raise ValueError(f"the checksum of the block at {offset} is wrong")
    words = struct.unpack(f"<{size // 4}I", block[size % 4 :])
    restarts = words[-1 - words[-1] : -1]
    if not 0 < words[-1] < len(words) or restarts[0] != 0 or list(restarts) != sorted(set(restarts)):
        raise ValueError(f"the block at {offset} is damaged")
    block = block[: -4 * (1 + len(restarts))]
    position, key, starts = 0, b"", set()
    while position < len(block):
        start = position
        shared, position = _read_varint(block, position)
        unshared, position = _read_varint(block, position)
        length, position = _read_varint(block, position)
        middle = position + unshared
        end = middle + length
        if shared > len(key) or end > len(block) or shared + unshared > MAX_KEY_BYTES:
            raise ValueError(f"the entry at {offset + start} is damaged")
        if shared == 0:
            starts.add(start)
        key, value, position = key[:shared] + block[position:middle], block[middle:end], end
        yield key, value
    if not starts.issuperset(restarts):
        raise ValueError(f"the block at {offset} is damaged")


def _read_varint(data: bytes, position: int) -> Tuple[int, int]:
    """Return a number below 2**28 and the position after it."""
    value = 0
    for shift in (0, 7, 14, 21):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError(f"the offset or size at {position - 4} is larger than the maximum size of the file")


@functools.lru_cache(maxsize=None)
def _crc_table() -> Tuple[int, ...]:
    def remainder(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(map(remainder, range(256)))


def _masked_crc32c(data: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _parse(kind: Any, value: bytes) -> Any:
    try:
        message = kind.FromString(value)
    except DecodeError:
        message = None
    # TensorFlow's parser might read another encoding of the same values differently.
    if message is None or message.SerializeToString() != value:
        raise ValueError(f"a {kind.__name__} is damaged")
    return message


def _product(sizes: Iterable[int]) -> int:
    return functools.reduce(operator.mul, sizes, 1)


def _shape_of(name: str, entry: Any) -> Shape:
    """Return the shape of a tensor; check its type and its number of bytes."""
    shape = tuple(dim.size for dim in entry.shape.dim)
    if entry.shape.unknown_rank or len(shape) > MAX_RANK:
        raise ValueError(f"{name!r} has {len(shape) or 'unknown'} dimensions; the maximum is {MAX_RANK}")
    if min(shape, default=0) < 0 or _product(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(
            f"{name!r} has the shape {shape}; expected sizes of 0 or more and at most {MAX_ELEMENTS} elements"
        )
    if entry.dtype not in _ITEM_BYTES and (entry.dtype != _STRING or entry.slices):
        raise ValueError(f"{name!r} has the type {entry.dtype}, which is not supported")
    expected = _product(shape) * _ITEM_BYTES.get(entry.dtype, 1)
    is_right = entry.size >= expected if entry.dtype == _STRING else entry.size == expected
    if not entry.slices and not is_right:
        raise ValueError(f"{name!r} has {entry.size} bytes; its shape {shape} needs {expected}")
    return shape


def _data_sizes(prefix: str, num_shards: int, used: Iterable[int]) -> Dict[int, int]:
    """Return the sizes of the data files that are used."""
    sizes = {}
    for shard in sorted(used):
        if not 0 <= shard < num_shards:
            raise ValueError(f"it refers to data file {shard} of {num_shards}")
        path = f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"
        files.check_regular_file(path)
        sizes[shard] = files.size(path)
    return sizes


def _check_slices(name: str, entries: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Yield the keys of the slices of a partitioned variable; check that they have its size in total."""
    full, shape, found, total = entries[name], shapes[name], set(), 0
    if len(full.slices) > MAX_SLICES:
        raise ValueError(f"{name!r} has {len(full.slices)} slices; the maximum is {MAX_SLICES}")
    for part in full.slices:
        extents = [(each.start, each.length if each.HasField("length") else None) for each in part.extent]
        key, lengths = _locate_slice(name, extents, shape)
        entry = entries.get(key)
        if entry is None or key in found or entry.slices or entry.dtype != full.dtype or shapes[key] != lengths:
            raise ValueError(f"the slice {extents} of {name!r} is missing or damaged")
        found.add(key)
        total += _product(lengths)
        yield key
    if found and total != _product(shape):
        raise ValueError(f"the slices of {name!r} have {total} elements; its shape is {shape}")


def _locate_slice(name: str, extents: Sequence[Tuple[int, Optional[int]]], shape: Shape) -> Tuple[str, Shape]:
    """Return the key and the shape of a slice; `extents` are start and length, None for all, of each dimension.

    The key consists of the name, the rank and the extents, in an encoding that keeps their order.
    """
    lengths = tuple(size if length is None else length for (_, length), size in zip(extents, shape))
    is_inside = all(0 <= start <= size - length <= size for (start, _), length, size in zip(extents, lengths, shape))
    if len(extents) != len(shape) or not is_inside or all(length is None for _, length in extents) or "\0" in name:
        raise ValueError(f"{name!r} of shape {shape} has the slice {extents}")
    key = b"\0" + name.encode("utf-8") + b"\0\1" + bytes([1, len(shape)])
    for start, length in extents:
        key += _ordered_number(start) + (b"\x7f" if length is None else _ordered_number(length))
    return _decode(key), lengths


def _ordered_number(number: int) -> bytes:
    """Encode a number of 0 or more: the number of leading ones is the number of bytes."""
    length = number.bit_length() // 7 + 1
    return (number | (0xFF00 >> length & 0xFF) << 8 * (length - 1)).to_bytes(length, "big")
