"""A tar archive is read completely or rejected: damage, truncation and hostile sizes never lose or invent a text."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import subprocess
import sys
import tarfile
import zlib

import pytest

from adapter_bert.common import errors
from adapter_bert.tasks.custom import archives
from tests.helpers import ROOT, assert_mentions, message_of

pytestmark = pytest.mark.smoke

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
COMPRESS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
# The second has a long name, which takes two more headers in GNU and pax archives.
TEXTS = {"x/1": b"one " * 150, "x/" + "2" * 120: b"two", "y/3": b"", "y/4": b"four"}


def member(name: str, content: bytes = b"", **changes) -> bytes:
    """Return a header with these values and the content, padded to whole blocks."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in changes.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % BLOCK)


def patched(header: bytes, offset: int, value: bytes) -> bytes:
    """Return a header with other bytes at an offset and a valid checksum."""
    header = header[:offset] + value + header[offset + len(value) :]
    total = sum(header[:148]) + 8 * ord(" ") + sum(header[156:BLOCK])
    return header[:148] + b"%06o\0 " % total + header[156:]


def pax_member(name: str, content: bytes, **records: object) -> bytes:
    """Return a member preceded by a pax header with the records."""
    lines = b"".join(_pax_record(f"{key.replace('__', '.')}={value}\n".encode()) for key, value in records.items())
    return member("pax", lines, type=tarfile.XHDTYPE) + member(name, content)


def _pax_record(text: bytes) -> bytes:
    size = len(text) + 2
    while len(b"%d " % size + text) != size:
        size += 1
    return b"%d " % size + text


def tar(texts, tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, content in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def read(data: bytes):
    return archives.read_files(data, "a.tar")


def error_of(data: bytes, *facts: object) -> None:
    assert_mentions(message_of(read, data), "a.tar", *facts)


def rejected(damaged, expected) -> int:
    """Return how many of the damaged archives are rejected; the others must have the expected files."""
    count = 0
    for data in damaged:
        with contextlib.suppress(errors.UserError):
            count += 1
            assert read(data) == expected
            count -= 1
    return count


def with_flipped_bits(data: bytes, positions):
    for position in positions:
        for bit in range(8):
            yield data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


# ------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_flipped_bit_in_a_header_never_loses_a_file(tar_format):
    texts = {name[:90]: content for name, content in TEXTS.items()}
    data = tar(texts, tar_format)
    assert read(data) == texts
    assert read(END) == {}
    for start in (0, data.index(b"y/3")):  # the first header and one in the middle
        flips = list(with_flipped_bits(data, range(start, start + BLOCK)))
        # Two bytes of the checksum's field do not count.
        assert rejected(flips, texts) > 0.98 * len(flips)


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_of_long_names_are_checked_too(tar_format):
    data = tar(TEXTS, tar_format)
    assert read(data) == TEXTS
    content = data.index(b"2" * 100) // BLOCK * BLOCK  # of the header that contains the long name
    headers = [*range(content - BLOCK, content), *range(content + BLOCK, content + 2 * BLOCK)]
    assert rejected(with_flipped_bits(data, headers), TEXTS) > 0.98 * 8 * len(headers)


def test_an_archive_that_ends_too_early_is_rejected_wherever_it_is_cut():
    data = tar(TEXTS)
    end = data.index(b"four") // BLOCK * BLOCK + BLOCK
    cuts = [*range(0, end + 2 * BLOCK, BLOCK), *range(1, end, 97), end + 1, end + 2 * BLOCK - 1]
    for cut in cuts:
        error_of(data[:cut])
    assert read(data[: end + 2 * BLOCK]) == TEXTS


def test_one_damaged_header_of_a_hundred_is_an_error_that_says_where():
    data = tar({f"x/{number}": b"text" for number in range(100)})
    assert len(read(data)) == 100
    start = 30 * 2 * BLOCK
    for damaged in (b"\xff", b"x/31\1", bytes(BLOCK), bytes(8 * BLOCK)):
        error_of(data[:start] + damaged + data[start + len(damaged) :], "damaged", "byte")
    error_of(b"\xff" + data[1:], "not a tar archive")


@pytest.mark.parametrize(
    "extra, fact", [(tar(TEXTS), "byte"), (b"x", "byte"), (bytes(archives.MAX_PADDING), f"{archives.MAX_PADDING:,}")]
)
def test_nothing_may_follow_the_end_except_a_few_zeros(extra, fact):
    data = tar(TEXTS)
    assert read(data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % BLOCK + 21 * BLOCK)) == TEXTS
    error_of(data + extra, fact)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damaged_or_truncated_compressed_data_never_loses_a_file(kind):
    data = COMPRESS[kind](tar(TEXTS))
    assert read(data) == TEXTS
    for size in range(len(data)):
        error_of(data[:size])
    flips = list(with_flipped_bits(data, range(len(data))))
    assert rejected(flips, TEXTS) > 0.9 * len(flips)  # e.g. the time in a gzip header does not matter


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_all_streams_of_a_compressed_file_count(kind):
    """Parallel compressors write several streams."""
    data = tar(TEXTS)
    for cut in (BLOCK, 3 * BLOCK, 1000):
        first, second = COMPRESS[kind](data[:cut]), COMPRESS[kind](data[cut:])
        assert read(first + second) == TEXTS
        error_of(first)
        start = len(first)
        assert rejected(with_flipped_bits(first + second, range(start, start + 4)), TEXTS) > 16


# ----------------------------------------------------------------------------------- links, special files


def test_hard_links_are_files_with_the_content_of_their_target():
    link = member("y/2", type=tarfile.LNKTYPE, linkname="x/1")
    long_link = member("z/" + "3" * 150, type=tarfile.LNKTYPE, linkname="./x/1")
    content = read(member("./x/1", b"text") + link + long_link + END)
    assert content == {"x/1": b"text", "y/2": b"text", "z/" + "3" * 150: b"text"}
    error_of(link + member("x/1", b"text") + END, "'y/2'", "hard link", "'x/1'")


def test_special_files_have_no_content_and_folders_are_not_listed():
    kinds = (tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"M")
    special = b"".join(member(f"x/{kind.decode()}", type=kind, linkname="x/1") for kind in kinds)
    content = read(member("x", type=tarfile.DIRTYPE) + special + member("x/1", b"text") + END)
    assert content == {**{f"x/{kind.decode()}": None for kind in kinds}, "x/1": b"text"}


def test_a_name_has_one_spelling_and_stays_in_the_archive():
    content = read(member("././x//1", b"one") + member("/y/./2", b"two") + END)
    assert content == {"x/1": b"one", "y/2": b"two"}
    error_of(member("../x/1", b"one") + END, "'../x/1'", "'..'")


def test_the_last_member_of_a_name_counts_as_when_extracting():
    assert read(member("x/1", b"old") + member("/x/1", b"new") + END) == {"x/1": b"new"}


@pytest.mark.parametrize("real_size, expected", [(1200, b"one " * 300), (1201, b"\0")])
def test_a_sparse_file_is_read_unless_it_has_holes(real_size, expected):
    text = b"one " * 300
    header = {"GNU__sparse__major": 1, "GNU__sparse__minor": 0, "GNU__sparse__realsize": real_size}
    pax = pax_member("x/1", b"2\n0\n1200\n1200\n0\n".ljust(BLOCK, b"\0") + text, **header)
    assert read(pax + END) == {"x/1": expected}
    assert read(old_sparse(real_size, [(0, 700), (700, 500)], text) + END) == {"x/1": expected}


# ---------------------------------------------------------------------------------------- hostile archives

SIZE, OLD_SPARSE_MAP, OLD_REAL_SIZE = 124, 386, 483


def base_256(number: int) -> bytes:
    return (number % 256**12 | (0x80 << 88 if number >= 0 else 0)).to_bytes(12, "big")


def old_sparse(real_size: int, entries, content: bytes = b"") -> bytes:
    header = member("x/1", content, type=tarfile.GNUTYPE_SPARSE)
    header = patched(header, OLD_REAL_SIZE, base_256(real_size))
    return patched(header, OLD_SPARSE_MAP, b"".join(base_256(number) for entry in entries for number in entry))


def xz_with_dictionary(data: bytes, code: int) -> bytes:
    """Return xz data whose block claims a dictionary of another size; code 40 is 4 GiB."""
    packed = lzma.compress(data)
    size = 4 * (packed[12] + 1)
    header = packed[12 : 12 + size - 4].replace(b"\x21\x01\x16", b"\x21\x01" + bytes([code]))
    assert header[4] == code
    return packed[:12] + header + zlib.crc32(header).to_bytes(4, "little") + packed[12 + size :]


def bomb(compress) -> bytes:
    """Return a compressed archive that contains a file of 512 MiB of zeros."""
    return compress(patched(member("x/1"), SIZE, base_256(2**29))) + compress(bytes(2**22)) * 128 + compress(END)


def sparse_1_0(content: bytes, real_size: int) -> bytes:
    return pax_member("x/1", content, GNU__sparse__major=1, GNU__sparse__minor=0, GNU__sparse__realsize=real_size) + END


def hostile_archives():
    """Yield (archive, a fact in the message)."""
    limit, header_limit = f"{archives.MIN_LIMIT:,}", f"{archives.MAX_HEADER_BYTES:,}"
    yield sparse_1_0(b"1\n0\n10000000000000\n".ljust(BLOCK, b"\0"), 10**13), limit
    yield sparse_1_0(b"99999999\n" + b"1\n" * 2**20, 9), header_limit
    yield old_sparse(10**13, [(0, 10**13)]) + END, limit
    yield old_sparse(1000, [(0, -512), (-512, 1512)]) + END, "negative"
    for size in (10**20, 2**63, 2**63 - 1, 2**31):
        yield pax_member("x/1", b"text", size=size) + END, limit
        yield patched(member("x/1", b"text"), SIZE, base_256(size)) + END, ""
    for size in (-512, -(10**20), "9" * 5000, "x", "1e9"):
        yield pax_member("x/1", b"text", size=size) + END, ""
    for size in (2**94, 2**63, 2**40, -1, -512, -(2**90)):
        for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.DIRTYPE, b"M", b"0"):
            yield patched(member("x/1", b"text", type=kind), SIZE, base_256(size)) + member("x/2") + END, ""
    yield patched(member("x/1", b"text"), SIZE, b"7777x777777\0") + END, "damaged"
    yield member("pax", b"0 path=x\n", type=tarfile.XHDTYPE) + member("x/1") + END, "damaged"
    yield member("pax", b"11 path=x/1\n", type=tarfile.XHDTYPE) * 5000 + member("x/1") + END, ""
    yield gzip.compress(member("name", b"a" * 2**24, type=tarfile.GNUTYPE_LONGNAME) + END), header_limit
    yield gzip.compress(patched(member("x/1"), SIZE, base_256(2**40)) + bytes(2**20)), limit
    yield xz_with_dictionary(tar(TEXTS)[:-1], code=40), "damaged"
    link = member("y/1", type=tarfile.LNKTYPE, linkname="x/1")
    yield member("x/1", b"a" * 2**20) + link * 300 + END, limit
    for kind in ("gz", "bz2", "xz"):
        yield bomb(COMPRESS[kind]), limit
        yield COMPRESS[kind](bytes(2**22)) * 128, f"{archives.MAX_PADDING:,} zeros"


READ_WITH_LIMITS = """if True:
    import os, resource, sys
    from adapter_bert.common import errors
    from adapter_bert.tasks.custom import archives

    for name in sys.stdin.read().split():
        with open(name, "rb") as file:
            data = file.read()
        if not os.fork():
            resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
            resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
            try:
                print(f"{name} has {len(archives.read_files(data, name))} files", flush=True)
            except errors.UserError as error:
                print(error, flush=True)
            os._exit(0)
        status = os.wait()[1]
        if status:
            print(f"{name}: the process ended with status {status}", flush=True)
"""


def test_hostile_sizes_are_rejected_without_using_memory_or_time(tmp_path):
    cases = list(hostile_archives())
    paths = [tmp_path / f"{number}.tar" for number in range(len(cases))]
    for path, (data, _) in zip(paths, cases):
        path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_LIMITS], input="\n".join(map(str, paths)), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
    )  # fmt: skip
    messages = done.stdout.splitlines()
    assert len(messages) == len(cases) > 50
    for path, (_, fact), message in zip(paths, cases, messages):
        assert_mentions(message, f"{path}", fact, ". ")
        assert " files" not in message and "status" not in message, message


def test_limits_are_named_with_a_remedy(monkeypatch):
    error_of(bomb(gzip.compress), f"{archives.MIN_LIMIT:,}", "limit", "unpack it", "folder")
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    assert len(read(tar(dict.fromkeys("abc", b"")))) == 3
    error_of(tar(dict.fromkeys("abcd", b"")), "3", "limit", "unpack it", "folder")
