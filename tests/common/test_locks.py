"""A lock has one holder, tells who it is, and ends with its process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from adapter_bert.common import locks
from tests.helpers import ROOT

HOLD = """
import sys, time
from adapter_bert.common import locks
lock = locks.acquire(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


def test_a_lock_has_one_holder(tmp_path):
    path = str(tmp_path / "lock")
    lock = locks.acquire(path)
    assert lock and locks.acquire(path) is None
    lock.write({"pid": 12345, "host": "first"})
    lock.write({"pid": 1})
    assert (tmp_path / "lock").read_text() == '{"pid": 1}'
    lock.release()
    assert os.listdir(tmp_path) == []
    with locks.held(path):
        assert locks.acquire(path, create=False) is None
    assert os.listdir(tmp_path) == []


def test_a_lock_ends_with_its_process(tmp_path):
    path = str(tmp_path / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        assert locks.acquire(path) is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = locks.acquire(path)
    assert lock
    lock.release()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_only_regular_files_can_be_locked(tmp_path, make):
    make(str(tmp_path / "lock"))
    with pytest.raises(OSError):
        locks.acquire(str(tmp_path / "lock"))
    assert os.listdir(tmp_path) == ["lock"]


@pytest.mark.parametrize("make", [shutil.copyfile, os.link])
def test_a_file_of_a_user_is_not_taken_for_a_lock(tmp_path, make):
    (tmp_path / "thesis.txt").write_text("precious" if make is shutil.copyfile else "")
    make(str(tmp_path / "thesis.txt"), str(tmp_path / "lock"))
    with pytest.raises(OSError, match="not a lock"):
        locks.acquire(str(tmp_path / "lock"))
    assert (tmp_path / "lock").read_text() == (tmp_path / "thesis.txt").read_text()
