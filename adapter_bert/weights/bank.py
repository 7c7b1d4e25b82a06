"""The bank: a local folder with one base and many packs on it.

    <bank>/bank.json                    describes the base: a digest of each tensor, architecture, vocabulary
    <bank>/base/                        a copy of the base, so that a bank can be moved
    <bank>/packs/<name>.safetensors     the packs

Packs are written atomically, so readers need no lock. A killed process leaves the bank in the state before or after its
change. It may also leave a temporary file, which is never listed and which a later `add` removes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files
from adapter_bert.model import parameters
from adapter_bert.weights import bases, checkpoints, fingerprints, packs

FILE_NAME = "bank.json"
FORMAT = "adapter-bert bank 1"
BASE_FOLDER = "base"
PACKS_FOLDER = "packs"
# Name of the base in the results of `verify`. No pack can have this name.
BASE = BASE_FOLDER + "/"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The files of a base do not record whether text is lower-cased; each pack does.
_TOKENIZER = ("type", "entries", "vocabulary")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `bank.json`.

    Attributes:
      created: date, ISO 8601 in UTC.
      base: fingerprint of all tensors of the base.
      tensors: name -> digest of each tensor.
      architecture: the content of the base's `bert_config.json`.
      tokenizer: type, number of entries and fingerprint of the vocabulary, see `bases.describe_tokenizer`.
    """

    created: str
    base: str
    tensors: Mapping[str, str]
    architecture: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    @classmethod
    def of(cls, base: bases.Base) -> Manifest:
        """Describe a base; raise a `UserError` if it is damaged or its parts belong to different models."""
        base.check_vocabulary()
        tokenizer = {key: base.tokenizer_description[key] for key in _TOKENIZER}
        fingerprint = fingerprints.combine(base.digests)
        return cls(packs.now(), fingerprint, base.digests, base.config.to_dict(), tokenizer)

    @classmethod
    def read(cls, path: str) -> Manifest:
        """Read a `bank.json`; raise a `UserError` if it is damaged or has another format."""
        values = files.read_json_object(path)
        if values.get("format") != FORMAT:
            raise errors.UserError(f"{path} has the format {values.get('format')!r}; this version reads {FORMAT!r}.")
        types = {"created": str, "base": str, "tensors": dict, "architecture": dict, "tokenizer": dict}
        for key, kind in types.items():
            if not isinstance(values.get(key), kind):
                raise errors.UserError(f"{path} is damaged: {key} is {values.get(key)!r}. Restore the file.")
        manifest = cls(**{key: values[key] for key in types})
        found = fingerprints.combine(manifest.tensors)
        if found != manifest.base:
            raise errors.UserError(
                f"{path} is damaged: its tensors have the fingerprint {found}, but it says {manifest.base}. Restore "
                "the file."
            )
        return manifest


@dataclasses.dataclass(frozen=True)
class PackSummary:
    """Summary of a pack for tables, from the header of its file.

    Attributes:
      name: name in the bank.
      size: size of the file in bytes.
      parameters: number of parameters.
      config: configuration; None if the header cannot be read.
    """

    name: str
    size: int
    parameters: int = 0
    config: Optional[packs.PackConfig] = None


class Bank:
    """One base and its packs. Use `create` and `open`.

    Attributes:
      folder: its full path.
      manifest: the content of `bank.json`.
      base: the copy of the base.
    """

    def __init__(self, folder: str, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.base = bases.Base.find(os.path.join(folder, BASE_FOLDER))

    @classmethod
    def create(cls, folder: str, base: bases.Base) -> Bank:
        """Create an empty bank with a copy of a base, atomically.

        Raises:
          errors.UserError: the folder is not empty, or the base is invalid.
        """
        folder = cls.check_absent(folder)
        with _user_errors(folder), files.staging_folder(folder) as staging:
            manifest = Manifest.of(base)
            _copy_base(base, os.path.join(staging, BASE_FOLDER))
            cls(staging, manifest).tensors()  # verifies the copy
            os.mkdir(os.path.join(staging, PACKS_FOLDER))
            files.write_json(os.path.join(staging, FILE_NAME), dict(format=FORMAT, **dataclasses.asdict(manifest)))
            try:
                files.rename_folder_noreplace(staging, folder)
            except FileExistsError:
                raise _folder_exists(folder) from None
        return cls(folder, manifest)

    @staticmethod
    def check_absent(folder: str) -> str:
        """Return the full path of a folder for a new bank; raise a `UserError` if it is not empty."""
        folder = _local(folder)
        if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
            raise _folder_exists(folder)
        return folder

    @classmethod
    def open(cls, folder: str) -> Bank:
        """Open a bank and check everything except the weights, which `verify`, `read` and `tensors` check.

        Raises:
          errors.UserError: there is no bank, or the base is not the one that `bank.json` describes.
        """
        folder = _local(folder)
        path = os.path.join(folder, FILE_NAME)
        if not os.path.isfile(path):
            raise errors.UserError(
                f"There is no bank {folder}: expected a folder with {FILE_NAME}, {BASE_FOLDER}/ and {PACKS_FOLDER}/. "
                f"Create one: python scripts/bank.py create --bank={folder} --base=FOLDER"
            )
        bank = cls(folder, Manifest.read(path))
        base, manifest = bank.base, bank.manifest
        mismatch = _first_difference(manifest.architecture, base.config.to_dict(), bases.ARCHITECTURE)
        mismatch = mismatch or _first_difference(manifest.tokenizer, base.tokenizer_description, _TOKENIZER)
        if not mismatch and set(manifest.tensors) != set(base.shapes):
            mismatch = f"{FILE_NAME} lists {len(manifest.tensors)} tensors, not the {len(base.shapes)} of the base"
        if mismatch:
            raise errors.UserError(
                f"The base in {base.folder} is not the one that {path} describes: {mismatch}. Restore it, or create "
                "the bank again."
            )
        return bank

    def tensors(self) -> Dict[str, np.ndarray]:
        """Read the weights of the base; raise a `UserError` if they have changed since the bank was created."""
        tensors = self.base.tensors()
        digests = fingerprints.of_tensors(tensors)
        changed = [name for name, digest in self.manifest.tensors.items() if digests.get(name) != digest]
        if changed:
            raise errors.UserError(
                f"The base in {self.base.folder} has changed: {len(changed)} of its {len(digests)} tensors differ from "
                f"{FILE_NAME}, e.g. {changed[0]}. Restore it, or create the bank again."
            )
        return tensors

    def names(self) -> List[str]:
        """Return the sorted names of the packs."""
        folder = os.path.join(self.folder, PACKS_FOLDER)
        with _user_errors(folder):
            found = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(name[: -len(packs.ENDING)] for name in found if packs.is_pack(name) and not name.startswith("."))

    def path(self, name: str) -> str:
        """Return the file of a pack; raise a `UserError` if the bank has no such pack."""
        names = self.names()
        if not names:
            raise errors.UserError(f"There is no pack {name!r} in the bank {self.folder}: it is empty.")
        if name not in names:
            raise errors.unknown(f"pack in the bank {self.folder}:", name, names)
        return self._file(name)

    def config(self, name: str) -> packs.PackConfig:
        """Read the configuration of a pack without its weights, which are not checked."""
        return packs.read_config(self.path(name))

    def read(self, name: str) -> packs.Pack:
        """Read a pack; raise a `UserError` if it is missing, damaged, or belongs to another base."""
        path = self.path(name)
        pack = packs.read(path)
        self.check(pack, path)
        return pack

    def check(self, pack: packs.Pack, where: str) -> None:
        """Check that a valid pack, named `where` in messages, has this base's architecture, weights and vocabulary.

        Raises:
          errors.UserError: it belongs to another base.
        """
        packs.check_architecture(pack, where, self.manifest.architecture, self.base.folder)
        packs.check_base(pack, where, self.manifest.tensors, self.base.folder)
        mismatch = _first_difference(self.manifest.tokenizer, pack.config.tokenizer, _TOKENIZER)
        if mismatch:
            raise errors.UserError(
                f"The pack {where} (task {pack.config.task}) was trained with another vocabulary than "
                f"{self.base.tokenizer_file}: {mismatch} in the pack."
            )

    def add(self, pack: packs.Pack, name: str, replace: bool = False) -> str:
        """Add a pack. If several processes add the same name, one succeeds.

        Args:
          pack: the pack, which is checked as in `read`.
          name: see `check_name`.
          replace: replace a pack of that name; then the last process wins.

        Returns:
          The path of the file.

        Raises:
          errors.UserError: the pack is invalid or belongs to another base; the name is taken or not allowed.
        """
        check_name(name)
        packs.check(pack, f"The pack to be added as '{name}'")
        self.check(pack, f"to be added as '{name}'")
        path = self._file(name)
        with _user_errors(self.folder):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                files.write_bytes(path, packs.serialise(pack), replace)
            except FileExistsError:
                raise errors.UserError(
                    f"There is already a pack '{name}' in the bank {self.folder}: use another name, or --replace."
                ) from None
            with contextlib.suppress(FileNotFoundError):  # another process may have removed the pack
                files.remove_leftovers(os.path.dirname(path), None, os.stat(path).st_mtime)
        return path

    def remove(self, name: str) -> str:
        """Remove a pack, even a damaged one; return the path of its file."""
        path = self.path(name)
        with _user_errors(self.folder):
            os.remove(path)
        return path

    def export_checkpoint(self, name: str, prefix: str, overwrite: bool = False) -> int:
        """Write base and pack as one checkpoint: all variables of the model under Google's names, and `global_step`.

        Args:
          name: name of the pack.
          prefix: path prefix of the checkpoint.
          overwrite: replace an existing checkpoint instead of raising an error.

        Returns:
          The number of variables.
        """
        if "://" in prefix:
            raise errors.UserError(
                f"The checkpoint prefix must be a local path, found {prefix}; export it locally and copy it."
            )
        if not overwrite:
            for path in _checkpoint_files(prefix):
                files.check_absent(path)
        pack, base = self.read(name), self.tensors()
        model = parameters.model_shapes(pack.config.bert_config, pack.config.make_head(), pack.config.adapter_config)
        values = dict(base, **pack.tensors)
        tensors = {variable: values[variable] for variable in model}
        tensors["global_step"] = np.array(pack.config.step, np.int64)
        with _user_errors(prefix):
            _write_checkpoint(tensors, os.path.abspath(prefix))
        return len(tensors)

    def verify(
        self, report: Callable[[str, Optional[str]], None] = lambda name, problem: None
    ) -> List[Tuple[str, Optional[str]]]:
        """Read and check every byte of the base and of all packs.

        Args:
          report: called with each result as soon as it is known.

        Returns:
          A list of (name, problem or None): first the base, named `BASE`, then the packs.
        """
        results = []
        for name in [BASE] + self.names():
            problem = None
            try:
                if name == BASE:
                    self.tensors()
                else:
                    self.read(name)
            except errors.UserError as error:
                if name != BASE and not os.path.exists(self._file(name)):
                    continue  # another process has removed it
                problem = str(error)
            results.append((name, problem))
            report(name, problem)
        return results

    def summaries(self) -> List[PackSummary]:
        """Return summaries of all packs, from their headers."""
        found = []
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # another process may remove it
                found.append(self._summary(name))
        return found

    def _summary(self, name: str) -> PackSummary:
        path = self._file(name)
        size = os.stat(path).st_size
        try:
            config = packs.read_config(path)
        except errors.UserError:
            os.stat(path)  # fails if another process has removed it
            return PackSummary(name, size)
        with open(path, "rb") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
        return PackSummary(name, size, (size - header) // np.dtype(np.float32).itemsize, config)

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, PACKS_FOLDER, name + packs.ENDING)


def check_name(name: str) -> None:
    """Raise a `UserError` if the name is not valid for a pack."""
    if not _NAME.fullmatch(name) or packs.is_pack(name):
        raise errors.UserError(
            f"A pack in a bank cannot be called {name!r}: expected at most 100 of the letters a-z and A-Z, digits, "
            f"'-', '_' and '.', starting with a letter or digit, without the ending {packs.ENDING}. Choose one with "
            "--name."
        )


def _folder_exists(folder: str) -> errors.UserError:
    return errors.UserError(f"{folder} already exists; a bank needs a new or empty folder.")


def _local(folder: str) -> str:
    if "://" in folder:
        raise errors.UserError(f"A bank must be a local folder; found {folder}.")
    return os.path.abspath(folder)


@contextlib.contextmanager
def _user_errors(path: str) -> Iterator[None]:
    """Turn errors of the file system into a `UserError`."""
    try:
        with files.user_errors():
            yield
    except OSError as error:
        raise errors.UserError(f"{path}: {error.strerror or error} ({error.filename}).") from None


def _copy_base(base: bases.Base, folder: str) -> None:
    """Copy only the files that belong to a base."""
    os.mkdir(folder)
    parts = [base.config_file, base.tokenizer_file, base.checkpoint + ".index"]
    for path in parts + tf.gfile.Glob(base.checkpoint + ".data-*"):
        tf.gfile.Copy(path, os.path.join(folder, os.path.basename(path)))


def _first_difference(expected: Mapping[str, Any], found: Mapping[str, Any], keys: Sequence[str]) -> Optional[str]:
    """Describe the first key whose value differs from that in the bank; return None if there is none."""
    for key in keys:
        values = [str(part.get(key)).lower() for part in (expected, found)]
        if values[0] != values[1]:
            return f"{key} is {values[0]} in the bank and {values[1]}"
    return None


def _checkpoint_files(prefix: str) -> List[str]:
    """Return the files of a checkpoint, starting with the index: TensorFlow ignores the others without it."""
    return glob.glob(glob.escape(prefix) + ".index") + sorted(glob.glob(glob.escape(prefix) + ".data-*"))


def _write_checkpoint(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Write a checkpoint. A killed process leaves the old one, none, or the new one, never a mixture."""
    folder, name = os.path.split(prefix)
    with files.staging_folder(os.path.join(folder, "." + name)) as staging:
        checkpoints.write(tensors, os.path.join(staging, name))
        for path in _checkpoint_files(prefix):
            os.remove(path)
        for path in reversed(_checkpoint_files(os.path.join(staging, name))):
            os.replace(path, os.path.join(folder, os.path.basename(path)))
