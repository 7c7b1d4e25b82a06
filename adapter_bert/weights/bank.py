"""The bank: a local folder that holds one base and many packs on it.

    <bank>/bank.json                    what the base is: a digest of each of its tensors, architecture, vocabulary
    <bank>/base/                        the base itself, so that a bank can be moved as it is
    <bank>/packs/<name>.safetensors     the packs

The file of a pack appears complete or not at all, so readers need no lock. A process that is killed leaves the state
before or after, and at most a hidden temporary file, which is never taken for a pack and which a later `add` removes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import shutil
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
# What `verify` calls the base: no pack can have that name.
BASE = BASE_FOLDER + "/"

_THERE = "{} is there already; a bank is made in a new folder."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Whether text is lower-cased stands in no file of a base: each pack has its own word on it.
_TOKENIZER = ("type", "entries", "vocabulary")


@dataclasses.dataclass(frozen=True)
class Notes:
    """What `bank.json` says.

    Attributes:
      created: when, ISO 8601 in UTC.
      base: fingerprint of all tensors of the base.
      tensors: name -> digest of each.
      architecture: the content of the base's `bert_config.json`.
      tokenizer: type, number of entries and fingerprint of the vocabulary, as in `bases.describe_tokenizer`.
    """

    created: str
    base: str
    tensors: Mapping[str, str]
    architecture: Mapping[str, Any]
    tokenizer: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """A pack in a table: what its header says. Where that cannot be read, there is only name, size and problem.

    Attributes:
      name: in the bank.
      size: bytes of the file.
      problem: why the header cannot be read.
      task, mode, top_layers, seed, created, collapsed: see `packs.PackConfig`.
      adapter_size: units of the bottleneck; None without adapters.
      parameters: numbers in the pack.
      metric: the primary one; None where nothing was scored.
      value: of that metric; None where it was no number.
    """

    name: str
    size: int
    problem: Optional[str] = None
    task: Optional[str] = None
    mode: Optional[str] = None
    adapter_size: Optional[int] = None
    top_layers: Optional[int] = None
    parameters: int = 0
    metric: Optional[str] = None
    value: Optional[float] = None
    collapsed: Optional[bool] = None
    seed: Optional[int] = None
    created: Optional[str] = None


class Bank:
    """One base and its packs; made by `create` and `open`.

    Attributes:
      folder: where it lies.
      notes: what `bank.json` says.
      base: the base in it.
    """

    def __init__(self, folder: str, notes: Notes) -> None:
        self.folder = folder
        self.notes = notes
        self.base = bases.Base.find(os.path.join(folder, BASE_FOLDER))

    @classmethod
    def create(cls, folder: str, base: bases.Base) -> Bank:
        """Makes a bank with a copy of a base and no packs; it appears complete or not at all.

        Args:
          folder: where; must not exist, or be empty.
          base: its three parts are copied.

        Raises:
          errors.UserError: there is something in that place, or the base is not sound.
        """
        folder = cls.check_free(folder)
        staging = files.temporary_name(folder)
        with _reported(folder):
            os.makedirs(staging)
            try:
                files.remove_leftovers(*os.path.split(folder), os.stat(staging).st_mtime)
                notes = _describe(base)
                _copy_base(base, os.path.join(staging, BASE_FOLDER))
                cls(staging, notes).tensors()  # what was copied is what was described
                os.mkdir(os.path.join(staging, PACKS_FOLDER))
                files.write_json(os.path.join(staging, FILE_NAME), dict(format=FORMAT, **dataclasses.asdict(notes)))
                files.rename_folder_noreplace(staging, folder)
            except FileExistsError:
                raise errors.UserError(_THERE.format(folder)) from None
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return cls(folder, notes)

    @staticmethod
    def check_free(folder: str) -> str:
        """Refuses a place where no bank can be made; returns its full path."""
        folder = _local(folder)
        if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
            raise errors.UserError(_THERE.format(folder))
        return folder

    @classmethod
    def open(cls, folder: str) -> Bank:
        """Opens a bank and checks all of it but the weights; for those, see `verify`, `read` and `tensors`.

        Raises:
          errors.UserError: there is none, or its parts do not fit each other.
        """
        folder = _local(folder)
        path = os.path.join(folder, FILE_NAME)
        if not os.path.isfile(path):
            raise errors.UserError(
                f"There is no bank {folder}: expected a folder with {FILE_NAME}, {BASE_FOLDER}/ and {PACKS_FOLDER}/. "
                f"One is made by: python scripts/bank.py create --bank={folder} --base=FOLDER"
            )
        bank = cls(folder, _parse(path, files.read_json_object(path)))
        base, notes = bank.base, bank.notes
        misfit = _differing(notes.architecture, base.config().to_dict(), bases.ARCHITECTURE)
        misfit = misfit or _differing(notes.tokenizer, _describe_tokenizer(base), _TOKENIZER)
        if not misfit and set(notes.tensors) != set(base.shapes()):
            misfit = f"{len(notes.tensors)} tensors are noted, and it has {len(base.shapes())} or others"
        if misfit:
            raise errors.UserError(
                f"The base in {base.folder} is not the one that {path} describes: {misfit}. Put it back, or create "
                "the bank again."
            )
        return bank

    def tensors(self) -> Dict[str, np.ndarray]:
        """The base's weights.

        Raises:
          errors.UserError: they are not those that the bank was made with.
        """
        tensors = self.base.tensors()
        digests = fingerprints.of_tensors(tensors)
        changed = [name for name, digest in self.notes.tensors.items() if digests.get(name) != digest]
        if changed:
            raise errors.UserError(
                f"The base in {self.base.folder} was changed: {len(changed)} of its {len(digests)} tensors are not "
                f"those of {FILE_NAME}, e.g. {changed[0]}. Put it back, or create the bank again."
            )
        return tensors

    def names(self) -> List[str]:
        """The names of the packs, sorted."""
        folder = os.path.join(self.folder, PACKS_FOLDER)
        with _reported(folder):
            found = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(name[: -len(packs.ENDING)] for name in found if packs.is_pack(name) and not name.startswith("."))

    def path(self, name: str) -> str:
        """The file of a pack.

        Raises:
          errors.UserError: the bank has no pack of that name.
        """
        names = self.names()
        if name not in names:
            if not names:
                raise errors.UserError(f"There is no pack {name!r} in the bank {self.folder}: it is empty.")
            raise errors.unknown(f"pack in the bank {self.folder}:", name, names)
        return self._file(name)

    def config(self, name: str) -> packs.PackConfig:
        """What a pack says of itself, without its weights: quick, and no proof that they are sound."""
        return packs.read_config(self.path(name))

    def read(self, name: str) -> packs.Pack:
        """Reads a pack and checks all of it, and that it belongs to this bank's base.

        Raises:
          errors.UserError: it is missing, damaged, or belongs elsewhere.
        """
        path = self.path(name)
        pack = packs.read(path)
        self.check(pack, path)
        return pack

    def check(self, pack: packs.Pack, where: str) -> None:
        """Refuses a pack that belongs to another base.

        Args:
          pack: a sound pack.
          where: what to call it, e.g. its path.

        Raises:
          errors.UserError: its base has another architecture, other weights or another vocabulary.
        """
        packs.check_architecture(pack, where, self.notes.architecture, self.base.folder)
        packs.check_base(pack, where, self.notes.tensors, self.base.folder)
        misfit = _differing(self.notes.tokenizer, pack.config.tokenizer, _TOKENIZER)
        if misfit:
            raise errors.UserError(
                f"The pack {where} (task {pack.config.task}) was trained with another vocabulary than "
                f"{self.base.tokenizer_file}: {misfit} in the pack."
            )

    def add(self, pack: packs.Pack, name: str, replace: bool = False) -> str:
        """Puts a pack into the bank. Of several processes that add one name at once, one wins.

        Args:
          pack: is checked as by `read`.
          name: letters, digits, `-`, `_` and `.`.
          replace: whether an older pack of that name may be replaced; then the last process wins.

        Returns:
          The path of the file.

        Raises:
          errors.UserError: the pack is not sound or belongs to another base; the name is taken or no name.
        """
        check_name(name)
        packs.check(pack, f"The pack to be added as '{name}'")
        self.check(pack, f"to be added as '{name}'")
        final = self._file(name)
        temporary = files.temporary_name(os.path.join(os.path.dirname(final), "." + name))
        with _reported(self.folder):
            os.makedirs(os.path.dirname(final), exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(packs.serialise(pack))
                    file.flush()
                    os.fsync(file.fileno())
                files.remove_leftovers(os.path.dirname(final), None, os.stat(temporary).st_mtime)
                if replace:
                    os.replace(temporary, final)
                else:
                    files.rename_noreplace(temporary, final)
            except FileExistsError:
                raise errors.UserError(
                    f"There is a pack '{name}' in the bank {self.folder} already: use another name, or --replace."
                ) from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(temporary)
        return final

    def export_checkpoint(self, name: str, prefix: str, overwrite: bool = False) -> int:
        """Writes base and pack as one checkpoint: all variables of the model under Google's names, and `global_step`.

        Args:
          name: of the pack.
          prefix: the path without the endings of the files.
          overwrite: whether a checkpoint that is there may be replaced.

        Returns:
          How many variables were written.

        Raises:
          errors.UserError: pack or base is damaged, or there is a checkpoint already.
        """
        if "://" in prefix:
            raise errors.UserError(f"A checkpoint is exported to a local place, found {prefix}; copy it from there.")
        older = files_of_checkpoint(prefix)
        if older and not overwrite:
            files.check_absent(older[0])
        pack, base = self.read(name), self.tensors()
        model = parameters.model_shapes(pack.config.bert_config, pack.config.make_head(), pack.config.adapter_config)
        tensors = {variable: pack.tensors.get(variable, base.get(variable)) for variable in model}
        tensors["global_step"] = np.array(pack.config.step, np.int64)
        with _reported(prefix):
            _write_checkpoint(tensors, os.path.abspath(prefix))
        return len(tensors)

    def remove(self, name: str) -> str:
        """Removes a pack, damaged or not; returns the path of the file that is gone."""
        path = self.path(name)
        with _reported(self.folder):
            os.remove(path)
        return path

    def verify(
        self, progress: Callable[[str, Optional[str]], None] = lambda name, problem: None
    ) -> List[Tuple[str, Optional[str]]]:
        """Reads every byte of the base and of all packs.

        Args:
          progress: is told each result as soon as it is known.

        Returns:
          (name, what is wrong with it or None): first the base, called `BASE`, then the packs.
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
                    continue  # removed meanwhile
                problem = str(error)
            results.append((name, problem))
            progress(name, problem)
        return results

    def rows(self) -> List[Row]:
        """What is in the bank, for a table; reads headers only."""
        rows = []
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                rows.append(_row(name, self._file(name)))
        return rows

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, PACKS_FOLDER, name + packs.ENDING)


def check_name(name: str) -> None:
    """Refuses what cannot be the name of a pack."""
    if not _NAME.fullmatch(name) or packs.is_pack(name):
        raise errors.UserError(
            f"A pack in a bank cannot be called {name!r}: expected up to 100 of the letters a-z and A-Z, digits, "
            f"'-', '_' and '.', a letter or digit first, without the ending {packs.ENDING}. Choose one with --name."
        )


def _local(folder: str) -> str:
    if "://" in folder:
        raise errors.UserError(f"A bank is a local folder; found {folder}.")
    return os.path.abspath(folder)


@contextlib.contextmanager
def _reported(path: str) -> Iterator[None]:
    """Turns what the operating system refuses into a `UserError`."""
    try:
        with files.user_errors():
            yield
    except OSError as error:
        raise errors.UserError(f"{path}: {error.strerror or error} ({error.filename}).") from None


def _copy_base(base: bases.Base, folder: str) -> None:
    """Copies the parts of a base, and nothing else that lies beside them."""
    os.mkdir(folder)
    parts = [base.config_file, base.tokenizer_file, base.checkpoint + ".index"]
    for path in parts + tf.gfile.Glob(base.checkpoint + ".data-*"):
        tf.gfile.Copy(path, os.path.join(folder, os.path.basename(path)))


def _describe(base: bases.Base) -> Notes:
    tokenizer, config = _describe_tokenizer(base), base.config()
    if tokenizer["entries"] != config.vocab_size:
        raise errors.UserError(
            f"The vocabulary {base.tokenizer_file} has {tokenizer['entries']} entries, but {base.config_file} says "
            f"vocab_size {config.vocab_size}: they belong to different models."
        )
    digests = base.digests()
    return Notes(
        created=packs.now(),
        base=fingerprints.combine(digests),
        tensors=digests,
        architecture=config.to_dict(),
        tokenizer=tokenizer,
    )


def _describe_tokenizer(base: bases.Base) -> Dict[str, Any]:
    described = base.describe_tokenizer()
    return {key: described[key] for key in _TOKENIZER}


def _parse(path: str, values: Mapping[str, Any]) -> Notes:
    """Checks what `bank.json` says by itself."""
    if values.get("format") != FORMAT:
        raise errors.UserError(f"{path} has the format {values.get('format')!r}; this version reads {FORMAT!r}.")
    kinds = {"created": str, "base": str, "tensors": dict, "architecture": dict, "tokenizer": dict}
    for key, kind in kinds.items():
        if not isinstance(values.get(key), kind):
            raise errors.UserError(f"{path} is damaged: {key} cannot be {values.get(key)!r}. Put it back.")
    notes = Notes(**{key: values[key] for key in kinds})
    found = fingerprints.combine(notes.tensors)
    if found != notes.base:
        raise errors.UserError(
            f"{path} is damaged: its tensors have the fingerprint {found}, and it says {notes.base}. Put it back."
        )
    return notes


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any], keys: Sequence[str]) -> Optional[str]:
    """The first of the keys in which two descriptions differ, said in words; None where they agree."""
    for key in keys:
        values = [part.get(key) for part in (expected, found)]
        if key == "hidden_act":
            values = [str(value).lower() for value in values]
        if values[0] != values[1]:
            return f"{key} is {values[0]} in the bank and {values[1]}"
    return None


def _row(name: str, path: str) -> Row:
    size = os.stat(path).st_size
    try:
        config = packs.read_config(path)
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        metric = config.primary_metric
        return Row(
            name,
            size,
            task=config.task,
            mode=config.tuning_mode,
            adapter_size=(config.adapter or {}).get("size"),
            top_layers=config.tune_top_layers,
            parameters=(size - 8 - header) // 4,  # all of a pack's numbers are float32
            metric=metric,
            value=config.metrics[metric] if metric else None,
            collapsed=config.collapsed,
            seed=config.seed,
            created=config.created,
        )
    except errors.UserError as error:
        if not os.path.exists(path):
            raise FileNotFoundError(path) from None
        return Row(name, size, problem=str(error))


def files_of_checkpoint(prefix: str) -> List[str]:
    """The files of a checkpoint, the index first: without it, the others are none."""
    return glob.glob(glob.escape(prefix) + ".index") + sorted(glob.glob(glob.escape(prefix) + ".data-*"))


def _write_checkpoint(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Writes a checkpoint; where it is killed, there is the older one, none, or the new one, and never a mixture."""
    folder, name = os.path.split(prefix)
    staging = files.temporary_name(os.path.join(folder, "." + name))
    os.makedirs(staging)
    try:
        files.remove_leftovers(folder, "." + name, os.stat(staging).st_mtime)
        checkpoints.write(tensors, os.path.join(staging, name))
        for path in files_of_checkpoint(prefix):
            os.remove(path)
        for path in reversed(files_of_checkpoint(os.path.join(staging, name))):
            os.replace(path, os.path.join(folder, os.path.basename(path)))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
