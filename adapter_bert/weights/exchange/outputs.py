"""Where exports and conversions may be written, and how they replace older ones.

An output is never written into a bank, a run or its own source. It replaces only what an earlier export wrote. If the
process is killed, the old or the new output is complete.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Sequence

from adapter_bert.common import errors, files, paths
from adapter_bert.weights import bank, packs
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder


def check_place(path: str, *sources: str) -> None:
    """Raise a `UserError` if an output would be in a bank, or in one of the folders that it is made from."""
    if not path:
        raise errors.UserError("--output or --output_dir is empty; expected the path of the output.")
    outer = bank.containing(path)
    if outer:
        raise errors.UserError(f"The output {path} would be inside the bank {outer}; choose another folder.")
    for source in sources:
        if files.is_inside(path, source):
            raise errors.UserError(f"The output {path} would be inside its source {source}; choose another folder.")


def check_file(path: str) -> None:
    """Raise a `UserError` if a file, or a checkpoint with this prefix, would be in a bank or in the folder of a run."""
    check_place(path)
    folder = os.path.dirname(path) or "."
    if paths.exists(os.path.join(folder, SETTINGS_FILE)) and RunFolder(folder).holds_run():
        raise errors.UserError(f"The output {path} would be in the folder of a run; choose another folder.")


def check_pack(path: str, overwrite: bool) -> None:
    """Raise a `UserError` unless a pack can be exported to a path. With `overwrite`, it may replace another pack."""
    check_file(path)
    if not overwrite:
        files.check_absent(path)
    elif paths.is_taken(path):
        with replaces_only("packs"):
            if not paths.is_file(path):
                raise errors.UserError(f"{path} is not a file.")
            packs.read_config(path)


@contextlib.contextmanager
def replaces_only(kind: str) -> Iterator[None]:
    """Add advice to an error in the block, which checks that an existing output is of the kind to be written."""
    try:
        yield
    except errors.UserError as error:
        raise errors.UserError(f"{error} --overwrite replaces only {kind}; choose another --output.") from None


def _is_in_use(folder: str) -> bool:
    """Return whether a folder is a mount point, or contains the working directory."""
    with contextlib.suppress(FileNotFoundError):  # the working directory has been deleted
        return os.path.ismount(folder) or files.is_inside(os.curdir, folder)
    return False


class OutputFolder:
    """A folder with the files that an export writes, and no others: another program might load those too."""

    def __init__(self, path: str, names: Sequence[str], overwrite: bool, *sources: str) -> None:
        """Check that the folder does not exist, is empty or, with `overwrite`, contains exactly these files.

        `sources` are folders that the files are made from.
        """
        if paths.is_remote(path):
            raise errors.UserError(
                f"The output folder (--output, --output_dir) must be local, found {path}: write to a local one, then "
                "copy it."
            )
        check_place(path, *sources)
        self.path = os.path.realpath(path)
        if _is_in_use(self.path):
            raise errors.UserError(
                f"{self.path} is a mount point, or contains the working directory, so it cannot be replaced; choose a "
                "folder in it."
            )
        self._names = set(names)
        self._overwrite = overwrite
        self._is_link = os.path.islink(path)
        self._check_content()

    def _check_content(self) -> None:
        files.remove_leftovers(os.path.dirname(self.path))  # of a command that was killed when its output was complete
        if not os.path.lexists(self.path):
            return
        with files.user_errors(f"Cannot write to {self.path}"):
            entries = {entry.name: entry.is_file(follow_symlinks=False) for entry in os.scandir(self.path)}
        others = sorted(name for name, is_file in entries.items() if name not in self._names or not is_file)
        if others:
            raise errors.UserError(
                f"{self.path} contains {errors.first_names(others)}, which this command does not write; choose another "
                "folder."
            )
        found, missing = sorted(entries), sorted(self._names - set(entries))
        if found and not self._overwrite:
            raise errors.UserError(
                f"{self.path} already contains {errors.first_names(found)}; choose another folder, or add --overwrite."
            )
        if found and (missing or self._is_link):
            problem = f"lacks {errors.first_names(missing)}" if missing else "was given as a symbolic link"
            raise errors.UserError(
                f"--overwrite replaces only complete exports by their real path, but {self.path}, with "
                f"{errors.first_names(found)}, {problem}; choose another folder."
            )

    @contextlib.contextmanager
    def replaced(self) -> Iterator[str]:
        """Yield an empty folder, which takes this folder's place if the block succeeds, see `files.replace_folder`."""
        with files.user_errors(f"Cannot write to {self.path}"), files.staging_folder(self.path) as staging:
            yield staging
            self._check_content()  # the conversion of a BERT takes so long that there may be new files
            files.replace_folder(staging, self.path)
