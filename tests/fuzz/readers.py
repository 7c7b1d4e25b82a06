"""The table of readers of foreign bytes: each is a function of the bytes of one file, with valid files as seeds.

A reader gets its bytes where users would have them: in a run, a bank, or a folder of another library, whose other files
are valid. Some readers repair checksums first, so that the code behind them is reached too.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from adapter_bert.common import errors
from adapter_bert.common.cached_property import cached_property
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.weights import bases, packs
from adapter_bert.weights.exchange import adapterhub, huggingface
from tests.helpers import base_flags, make_pack, tiny_config, write_bert, write_cola


class Reader(NamedTuple):
    """A function that reads bytes, and bytes that it accepts."""

    read: Callable[[bytes], Any]
    seeds: Sequence[bytes]
    is_json: bool = False

    def after(self, prepare: Callable[[bytes], bytes]) -> Reader:
        """Return a reader that first changes its bytes, e.g. to repair checksums."""
        return self._replace(read=lambda data: self.read(prepare(data)))


class Workshop:
    """A folder with the valid files that surround a fuzzed one, created on first use."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, *names: str) -> str:
        """Return a path in the folder; its parents exist."""
        path = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def copy(self, folder: str) -> str:
        """Copy a folder, so that a reader may change its files."""
        number = len(os.listdir(self.folder))
        return shutil.copytree(folder, self.path(f"{os.path.basename(folder)}-{number}"))

    @cached_property
    def base(self) -> bases.Base:
        write_bert(self.path("base"), tiny_config())
        return bases.Base.find(self.path("base"))

    @cached_property
    def pack(self) -> packs.Pack:
        return make_pack(self.base)

    @cached_property
    def hugging_face(self) -> str:
        """The base as Hugging Face writes it."""
        huggingface.export_base(self.base, self.path("hf"), do_lower_case=True)
        return self.path("hf")

    @cached_property
    def adapter_hub(self) -> str:
        """The pack as AdapterHub writes it."""
        adapterhub.export(self.pack, self.base, self.path("adapterhub"))
        return self.path("adapterhub")

    @cached_property
    def settings(self) -> ClassifierSettings:
        flags = base_flags(self.base.folder, write_cola(self.path("cola"), 8, 4, 2), self.path("run"))
        return ClassifierSettings(**flags, do_train=True, do_eval=True)


Maker = Callable[[Workshop], Reader]
READERS: Dict[str, Maker] = {}


def reader(name: str) -> Callable[[Maker], Maker]:
    """Add a function that makes a reader to the table."""

    def add(make: Maker) -> Maker:
        assert name not in READERS
        READERS[name] = make
        return make

    return add


def file_reader(path: str, function: Callable[[str], Any], seeds: Sequence[bytes], is_json: bool = False) -> Reader:
    """Return a reader that writes its bytes to a path, which the function then reads."""

    def read(data: bytes) -> None:
        write(path, data)
        function(path)

    return Reader(read, seeds, is_json)


def write(path: str, data: bytes) -> str:
    with open(path, "wb") as file:
        file.write(data)
    return path


def content(*names: str) -> bytes:
    with open(os.path.join(*names), "rb") as file:
        return file.read()


def call_all(*functions: Callable[[], Any]) -> None:
    """Call all functions, even if some raise a `UserError`; then raise the first of these errors."""
    found: List[errors.UserError] = []
    for function in functions:
        try:
            function()
        except errors.UserError as error:
            found.append(error)
    if found:
        raise found[0]
