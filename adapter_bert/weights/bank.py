"""The bank: a folder with one base and many packs on it.

    <bank>/bank.json                    describes the base: a digest of each tensor, architecture, vocabulary
    <bank>/base/                        a copy of the base, so that a bank can be moved
    <bank>/packs/<name>.safetensors     the packs

Packs are written atomically, so readers need no lock. A killed process leaves the bank in the state before or after its
change. It may also leave a temporary file, which is never listed and which a later `add` removes. Remote banks
(`gs://…`) give fewer guarantees, see `files`: change them from one process at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, json_files, paths
from adapter_bert.weights import bases, checkpoints, fingerprints, packs

FILE_NAME = "bank.json"
FORMAT = "adapter-bert bank 1"
BASE_FOLDER = "base"
PACKS_FOLDER = "packs"
# Name of the base in the results of `verify`. No pack can have this name.
BASE = BASE_FOLDER + "/"

# Types of the values in `bank.json`, see `_describe`.
_MANIFEST = {
    "base": str,
    "tensors": Mapping[str, str],
    "architecture": Mapping[str, Any],
    "tokenizer": Mapping[str, Any],
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PackSummary(NamedTuple):
    """Summary of a pack, from the header of its file; the configuration is None if it cannot be read."""

    name: str
    size: int  # of the file, in bytes
    parameters: int = 0
    config: Optional[packs.PackConfig] = None
    problem: str = ""  # why it cannot be read


class Bank:
    """One base and its packs. Use `create` and `open`."""

    def __init__(self, folder: str, manifest: Mapping[str, Any]) -> None:
        self.folder = folder  # its full path
        self.manifest = manifest  # the content of `bank.json`, see `_describe`
        self.base = bases.Base.find(os.path.join(folder, BASE_FOLDER))

    @classmethod
    def create(cls, folder: str, base: bases.Base) -> Bank:
        """Create an empty bank with a copy of a base, atomically; the folder must be empty or not exist."""
        folder = cls.check_absent(folder, base.folder)
        with files.user_errors(), files.staging_folder(folder) as staging:
            manifest = _describe(base)
            files.make_subfolder(os.path.join(staging, BASE_FOLDER))
            for path in [base.config_file, base.tokenizer_file, *checkpoints.files_of(base.checkpoint)]:
                if not path.endswith(".meta"):
                    tf.gfile.Copy(path, os.path.join(staging, BASE_FOLDER, os.path.basename(path)))
            cls(staging, manifest).tensors()  # verifies the copy
            files.make_subfolder(os.path.join(staging, PACKS_FOLDER))
            files.write_json(os.path.join(staging, FILE_NAME), manifest)
            try:
                files.rename_folder_noreplace(staging, folder)
            except FileExistsError:
                raise _folder_exists(folder) from None
        return cls(folder, manifest)

    @staticmethod
    def check_absent(folder: str, base: str) -> str:
        """Return the full path of a folder for a new bank with the base in a folder.

        Raises:
          UserError: the folder is not empty, or it is in another bank or in the folder of the base.
        """
        folder = _absolute(folder)
        outer = base if files.is_inside(folder, base) else containing(os.path.dirname(folder))
        if outer:
            raise errors.UserError(f"The new bank {folder} would be inside {outer}; choose another folder.")
        files.remove_leftovers(os.path.dirname(folder))  # of a command that was killed when its bank was complete
        if paths.is_taken(folder) and (paths.names_in(folder) or not paths.is_folder(folder)):
            raise _folder_exists(folder)
        return folder

    @classmethod
    def open(cls, folder: str) -> Bank:
        """Open a bank and check everything except the weights, which `verify`, `read` and `tensors` check."""
        folder = _absolute(folder)
        path = os.path.join(folder, FILE_NAME)
        if not paths.is_file(path):
            raise errors.UserError(
                f"There is no bank {folder}: expected a folder with {FILE_NAME}, {BASE_FOLDER}/ and {PACKS_FOLDER}/. "
                f"Create one: python scripts/bank.py create --bank={folder} --base=FOLDER"
            )
        bank = cls(folder, _read_manifest(path))
        base, manifest = bank.base, bank.manifest
        mismatch = bases.describe_difference(bases.ARCHITECTURE, base.config.to_dict(), manifest["architecture"])
        mismatch = mismatch or bases.describe_difference(
            bases.VOCABULARY, base.tokenizer_description, manifest["tokenizer"]
        )
        if mismatch:
            raise errors.UserError(
                f"The base in {base.folder} is not the one that {path} describes: its {mismatch}. Restore it, or "
                "create the bank again."
            )
        return bank

    def tensors(self) -> Dict[str, np.ndarray]:
        """Read the weights of the base; raise a `UserError` if they have changed since the bank was created."""
        tensors = self.base.tensors()
        digests = fingerprints.of_tensors(tensors)
        changed = [name for name, digest in self.manifest["tensors"].items() if digests.get(name) != digest]
        if changed:
            raise errors.UserError(
                f"The base in {self.base.folder} has changed: {len(changed)} of its {len(digests)} tensors differ from "
                f"{FILE_NAME}, e.g. {changed[0]}. Restore it, or create the bank again."
            )
        return tensors

    def names(self) -> List[str]:
        """Return the sorted names of the packs."""
        with files.user_errors():
            found = paths.names_in(os.path.join(self.folder, PACKS_FOLDER))
        return sorted(name[: -len(packs.ENDING)] for name in found if packs.is_pack(name) and not name.startswith("."))

    def path(self, name: str) -> str:
        """Return the file of a pack; raise a `UserError` if the bank has no such pack."""
        names = self.names()
        if not names:
            raise errors.UserError(f"There is no pack {name!r} in the bank {self.folder}: it is empty.")
        if name not in names:
            raise errors.unknown(f"pack in the bank {self.folder}:", name, names)
        return self._file(name)

    def read(self, name: str) -> packs.Pack:
        """Read a pack; raise a `UserError` if it is missing, damaged, or belongs to another base."""
        path = self.path(name)
        pack = packs.read(path)
        self.check(pack, path)
        return pack

    def check(self, pack: packs.Pack, where: str) -> None:
        """Check that a valid pack, named `where` in messages, has this base's architecture, weights and vocabulary."""
        packs.check_architecture(pack, where, self.manifest["architecture"], self.base.folder)
        packs.check_base(pack, where, self.manifest["tensors"], self.base.folder)
        mismatch = bases.describe_difference(bases.VOCABULARY, pack.config.tokenizer, self.manifest["tokenizer"])
        if mismatch:
            raise errors.UserError(
                f"The pack {where} (task {pack.config.task}) was trained with a vocabulary other than "
                f"{self.base.tokenizer_file}: its {mismatch}."
            )

    def add(self, pack: packs.Pack, name: str, replace: bool = False) -> str:
        """Add a pack, which is checked as in `read`, and return the path of its file.

        If several processes add the same name, one succeeds. With `replace`, the last one replaces the others' pack.
        """
        check_name(name)
        packs.check(pack, f"The pack to be added as '{name}'")
        self.check(pack, f"to be added as '{name}'")
        path = self._writable_file(name)
        files.make_folder(os.path.dirname(path))
        with files.user_errors():
            try:
                files.write_bytes(path, packs.serialise(pack), replace)
            except FileExistsError:
                raise errors.UserError(
                    f"There is already a pack '{name}' in the bank {self.folder}: use another name, or --replace."
                ) from None
        return path

    def remove(self, name: str) -> str:
        """Remove a pack, even a damaged one; return the path of its file."""
        self.path(name)  # checks that it exists
        path = self._writable_file(name)
        with files.user_errors():
            tf.gfile.Remove(path)
        return path

    def verify(self) -> Iterator[Tuple[str, Optional[str]]]:
        """Read and check every byte; yield (name, problem or None): first the base, named `BASE`, then the packs."""
        for name in [BASE] + self.names():
            problem = None
            try:
                if name == BASE:
                    self.tensors()
                else:
                    self.read(name)
            except errors.UserError as error:
                if name != BASE and not paths.is_taken(self._file(name)):
                    continue  # another process has removed it
                problem = str(error)
            yield name, problem

    def summaries(self) -> List[PackSummary]:
        """Return summaries of all packs, from their headers."""
        found = []
        for name in self.names():
            path = self._file(name)
            try:
                config = packs.read_config(path)
                with files.user_errors(), tf.gfile.GFile(path, "rb") as file:
                    header, size = 8 + int.from_bytes(file.read(8), "little"), file.size()
                found.append(PackSummary(name, size, (size - header) // np.dtype(np.float32).itemsize, config))
            except errors.UserError as error:
                with contextlib.suppress(OSError, errors.UserError):  # another process may have removed it
                    size = files.size(path) if paths.is_remote(path) else os.lstat(path).st_size
                    found.append(PackSummary(name, size, problem=str(error)))
        return found

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, PACKS_FOLDER, name + packs.ENDING)

    def _writable_file(self, name: str) -> str:
        folder = os.path.join(self.folder, PACKS_FOLDER)
        if os.path.islink(folder):
            raise errors.UserError(
                f"{folder} is a symbolic link to {os.path.realpath(folder)}. Packs are added and removed only in a "
                "folder of the bank itself: move the packs there."
            )
        return self._file(name)


def containing(path: str) -> Optional[str]:
    """Return the folder of the bank that a path, which need not exist, is in; None if it is in none."""
    for folder in paths.with_parents(path):
        if all(paths.exists(os.path.join(folder, name)) for name in (FILE_NAME, BASE_FOLDER)):
            return folder
    return None


def check_name(name: str) -> None:
    """Raise a `UserError` if the name is not valid for a pack."""
    if not _NAME.fullmatch(name) or packs.is_pack(name):
        raise errors.UserError(
            f"A pack in a bank cannot be called {name!r}: expected at most 100 of the letters a-z and A-Z, digits, "
            f"'-', '_' and '.', starting with a letter or digit, without the ending {packs.ENDING}. Choose one with "
            "--name."
        )


def _describe(base: bases.Base) -> Dict[str, Any]:
    """Return the content of a new `bank.json`; raise a `UserError` if the parts of the base do not match."""
    base.check_vocabulary()
    return {
        "format": FORMAT,
        "created": packs.now(),
        "base": fingerprints.combine(base.digests),
        "tensors": base.digests,
        "architecture": base.config.to_dict(),
        "tokenizer": {key: base.tokenizer_description[key] for key in bases.VOCABULARY},
    }


def _read_manifest(path: str) -> Dict[str, Any]:
    """Read a `bank.json`; raise a `UserError` if it is damaged or has another format."""
    values = json_files.read_object(path)
    if values.get("format") != FORMAT:
        raise errors.UserError(f"{path} has the format {values.get('format')!r}; this version reads {FORMAT!r}.")
    json_files.check_types(values, _MANIFEST, path)
    found = fingerprints.combine(values["tensors"])
    if found != values["base"]:
        raise errors.UserError(
            f"{path} is damaged: its tensors have the fingerprint {found}, but it says {values['base']}. Restore the "
            "file."
        )
    return values


def _folder_exists(folder: str) -> errors.UserError:
    return errors.UserError(f"{folder} already exists; a bank needs a new or empty folder.")


def _absolute(folder: str) -> str:
    is_remote = paths.is_remote(folder)
    if not folder or (is_remote and len(list(paths.with_parents(folder))) == 1):
        raise errors.UserError(f"A bank must be a folder; in a bucket, one below its top. Found {folder!r}.")
    return paths.real(folder) if is_remote else os.path.abspath(folder)
