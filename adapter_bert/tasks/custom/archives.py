"""Read the files in a tar archive without extracting it.

`tarfile` treats an invalid header as the end of the archive and trusts the sizes in headers. Here, an archive must end
with a few blocks of zeros, compressed data must match its checksums, and sizes are limited before anything is read.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from typing import Any, Dict, Optional

from adapter_bert.common import errors
from adapter_bert.tasks import encodings

# An archive may unpack to 100 times its size, or to 256 MiB if that is more.
MAX_RATIO = 100
MIN_LIMIT = 2**28
MAX_MEMBERS = 2 * 10**6
# Headers of one member, including long names and extended attributes.
MAX_HEADER_BYTES = 2**20
# Zeros at the end: two blocks, and programs fill the last record. More of them may be what is left of lost files.
MAX_PADDING = 2 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE

# Modules by signature. Python may have been built without some of them.
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}


def read_files(data: bytes, path: str) -> Dict[str, Optional[bytes]]:
    """Return the content of files and hard links by name; None for symbolic links, devices and other special files.

    `data` is the archive, and `path` its name for messages. As when extracting, the last of several members with the
    same name counts. Raise a `UserError` if the archive is damaged, incomplete or exceeds a limit.
    """
    try:
        reader = _Reader(_unpacked(data), max(MIN_LIMIT, MAX_RATIO * len(data)))
        with tarfile.open(fileobj=reader, mode="r:") as archive:  # type: ignore[call-overload]
            content = _read_members(archive, reader)
        reader.check_end()
        return content
    except _LimitError as error:
        raise errors.UserError(f"{path}: {error}. If you trust the archive, unpack it and give the folder.") from None
    except Exception as error:  # Damaged data raises exceptions of many types in these modules.
        reason = errors.reason(error) or type(error).__name__
        raise errors.UserError(
            f"{path} is not a tar archive, or damaged: {reason}. Download or pack it again."
        ) from None


def _unpacked(data: bytes) -> Any:
    modules = [module for signature, module in _COMPRESSIONS.items() if data.startswith(signature)]
    file = io.BytesIO(data)
    return importlib.import_module(modules[0]).open(file) if modules else file


class _LimitError(Exception):
    pass


class _Reader:
    """The part of a file object that `tarfile` uses. Only moves forward, and reads no more than the limits allow."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._limit = file, limit
        self._position = 0
        self._last = b""
        self.header_bytes = 0  # read by `tarfile`; reset by the caller for each member
        self.linked_bytes = 0  # content of hard links, set by the caller: each becomes a text of its own

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header contains a negative size")
        while self._position < position and self._take(min(encodings.BLOCK_SIZE, position - self._position)):
            pass  # At the end of the file, the next `read` returns nothing.

    def read(self, size: int) -> bytes:
        self.header_bytes += abs(size)
        if self.header_bytes > MAX_HEADER_BYTES:
            raise _LimitError(f"found a header of more than {MAX_HEADER_BYTES:,} bytes, the limit")
        self._last = self._take(size)
        return self._last

    def read_content(self, member: tarfile.TarInfo) -> bytes:
        position = 0
        for offset, size in getattr(member, "sparse", None) or [(0, member.size)]:
            position = position + size if offset == position or not size else -1
        if position != member.size:
            return b"\0"  # A sparse file with holes, which stand for NUL bytes: it is not text.
        self.seek(member.offset_data)
        content = self._take(member.size)
        if len(content) < member.size:
            raise tarfile.ReadError("unexpected end of data")
        return content

    def check_end(self) -> None:
        """Raise an error unless `tarfile` stopped at a block of zeros, and only zeros follow."""
        block, padding = self._last, 0
        while block:
            if any(block):
                raise tarfile.ReadError(f"expected a header or zeros at byte {self._position - len(block):,}")
            padding += len(block)
            if padding > MAX_PADDING:
                raise tarfile.ReadError(f"more than {MAX_PADDING:,} zeros follow the last file, as if others were lost")
            block = self._take(tarfile.BLOCKSIZE)
        if padding < 2 * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the end is missing")

    def _take(self, size: int) -> bytes:
        if size < 0:
            raise tarfile.ReadError("a header contains a negative size")
        if self._position + self.linked_bytes + size > self._limit:
            raise _LimitError(f"the content exceeds the limit of {self._limit:,} bytes for an archive of this size")
        data = self._file.read(size)
        self._position += len(data)
        return data


def _read_members(archive: tarfile.TarFile, reader: _Reader) -> Dict[str, Optional[bytes]]:
    content: Dict[str, Optional[bytes]] = {}
    for number, member in enumerate(archive, start=1):
        archive.members.clear()  # type: ignore[attr-defined]  # They take more memory than small texts.
        if number > MAX_MEMBERS:
            raise _LimitError(f"found more than {MAX_MEMBERS:,} files, the limit")
        name = _relative(member.name)
        if member.isfile():
            content[name] = reader.read_content(member)
        elif member.islnk():
            target = _relative(member.linkname)
            if target not in content:
                raise tarfile.ReadError(f"{name!r} is a hard link to {target!r}, which is not before it")
            content[name] = content[target]
            reader.linked_bytes += len(content[target] or b"")
        elif not member.isdir():
            content[name] = None
        reader.header_bytes = 0
    return content


def _relative(name: str) -> str:
    """Return a name without `.` and empty parts, so that it has only one spelling."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise tarfile.ReadError(f"the name {name!r} contains '..'")
    return "/".join(parts)
