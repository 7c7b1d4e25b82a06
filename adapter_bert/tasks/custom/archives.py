"""Read the files of a folder or a tar archive into memory. Nothing is extracted to disk."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zlib
from typing import Dict, Iterator, Optional, Tuple

from adapter_bert.common import errors
from adapter_bert.common.lazy_tensorflow import tf
from adapter_bert.tasks import encodings

# An archive, optionally with a folder in it: `news.tar.gz//train`.
_ARCHIVE = re.compile(r"(?P<file>.*\.(?:tar|tar\.gz|tgz|tar\.bz2))(?://(?P<folder>.*))?", re.IGNORECASE | re.DOTALL)


def read_files(path: str) -> Optional[Iterator[Tuple[str, bytes]]]:
    """Yield (relative path, content) of the files of a folder or archive; return None if the path is neither.

    Raises:
      errors.UserError: a file cannot be read, or the archive is damaged or does not contain the folder.
    """
    if tf.gfile.IsDirectory(path):
        return _folder_files(path.rstrip("/") + "/")
    archive = _ARCHIVE.fullmatch(path)
    if archive:
        return _archive_files(archive.group("file"), (archive.group("folder") or "").strip("/"))
    return None


def _folder_files(root: str) -> Iterator[Tuple[str, bytes]]:
    for folder, _, names in tf.gfile.Walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if not name.startswith("."):
                yield path[len(root) :], encodings.read_bytes(path)


def _archive_files(path: str, folder: str) -> Iterator[Tuple[str, bytes]]:
    content: Dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(encodings.read_bytes(path)), mode="r:*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file:
                    # As when extracting, the last of several members with the same name counts.
                    name = member.name[2:] if member.name.startswith("./") else member.name.lstrip("/")
                    content[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise errors.UserError(f"{path} is not a tar archive, or damaged: {errors.reason(error)}.") from None
    prefix = folder + "/" if folder else ""
    found = [(name[len(prefix) :], data) for name, data in content.items() if name.startswith(prefix)]
    if not found:
        folders = sorted({name.split("/")[0] for name in content if "/" in name})
        raise errors.unknown(f"folder of {path}", folder, folders)
    return iter(found)
