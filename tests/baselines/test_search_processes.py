"""Searches with several processes: killed ones, and a study on a PostgreSQL server."""

from __future__ import annotations

import collections
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from tests.baselines.helpers import write_module
from tests.baselines.searches import command
from tests.helpers import ROOT
from tests.kill import Program

from adapter_bert.baselines.search_folder import SearchFolder  # isort: skip
from adapter_bert.baselines.study import JOURNAL_FILE, Study

TRIALS = 8
KILLS = 3


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> str:
    return write_module(str(tmp_path_factory.mktemp("hub") / "module"))


def children(pid: int) -> list:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def finished_trials(folder: str) -> list:
    """The numbers of the trials that the journal says have finished, in the order of its lines."""
    path = os.path.join(folder, JOURNAL_FILE)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    states = [line for line in lines if line["op_code"] == 6]  # JournalOperation.SET_TRIAL_STATE_VALUES
    return [line["trial_id"] for line in states if line["state"] != 0]


@pytest.mark.long
def test_killing_a_search_loses_no_trial_and_counts_none_twice(tmp_path, module):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    folder = str(tmp_path / "out")
    line = [sys.executable, *command(folder, module, trials=TRIALS, workers=2)]
    for kill in range(1, KILLS + 1):
        program = Program(line, stdout=subprocess.DEVNULL)
        target = min(2 * kill, TRIALS - 1)
        program.wait_until(lambda target=target: len(finished_trials(folder)) >= target)
        for pid in [*children(program.process.pid), program.process.pid]:
            os.kill(pid, signal.SIGKILL)
        program.process.wait()
    done_before = finished_trials(folder)
    assert len(done_before) >= 2 * KILLS
    found = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    assert found.returncode == 0, found.stdout
    study = Study(SearchFolder(folder), SearchFolder(folder).search())
    assert [trial.number for trial in study.trials()] == list(range(TRIALS))
    assert all(trial.state.name in ("COMPLETE", "PRUNED") for trial in study.trials())
    counts = collections.Counter(finished_trials(folder))
    assert len(counts) == TRIALS and set(counts.values()) == {1}
    assert finished_trials(folder)[: len(done_before)] == done_before
    with open(os.path.join(folder, "best.json")) as file:
        best = json.load(file)
    assert (best["trial"], best["score"]) == (study.best().number, study.best().value)
    assert best["score"] == max(trial.value for trial in study.trials() if trial.state.name == "COMPLETE")
    assert os.path.exists(os.path.join(folder, "best", str(best["trial"]), "seed=1", "run", "results.json"))


def environment() -> dict:
    return dict(os.environ, PYTHONPATH=ROOT)


@pytest.fixture
def server():
    """The address of a PostgreSQL server in a temporary folder."""
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install -e .[search])")
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not programs:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    as_user = []
    # pytest's own folders are closed to other users.
    temporary = tempfile.TemporaryDirectory(prefix="adapter-bert-postgres-", ignore_cleanup_errors=True)
    folder = temporary.name
    if os.getuid() == 0:  # the server refuses to run as root
        as_user = ["setpriv", "--reuid=nobody", "--clear-groups", "--"]
        subprocess.run(["chown", "nobody", folder], check=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    data = os.path.join(folder, "data")

    def call(program: str, *args: str) -> None:
        line = [*as_user, os.path.join(programs[-1], program), *args]
        subprocess.run(line, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    call("initdb", "-D", data, "-U", "tester", "--auth=trust")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    call("pg_ctl", "-D", data, "-w", "-l", os.path.join(folder, "log"), "-o", options, "start")
    try:
        call("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "tester", "searches")
        yield f"postgresql://tester:unused@127.0.0.1:{port}/searches"
    finally:
        call("pg_ctl", "-D", data, "-m", "immediate", "stop")
        temporary.cleanup()


@pytest.mark.long
def test_a_server_stores_the_studies_of_several_searches(tmp_path, module, server, monkeypatch):
    for name in ("first", "second"):
        folder = str(tmp_path / name)
        line = [sys.executable, *command(folder, module, trials=3, workers=2, storage=server, study=name)]
        found = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
        assert found.returncode == 0, found.stdout
        assert not os.path.exists(os.path.join(folder, JOURNAL_FILE))
        with open(os.path.join(folder, "search.json")) as file:
            assert "unused" not in file.read()  # the password
        study = Study(SearchFolder(folder), SearchFolder(folder).search(), server)
        assert [trial.number for trial in study.trials()] == [0, 1, 2]
        assert all(trial.state.is_finished() for trial in study.trials())
    # Another space under a name that exists.
    folder = str(tmp_path / "third")
    line = [sys.executable, *command(folder, module, trials=3, storage=server, study="first", hidden_size=9)]
    found = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    assert found.returncode == 1 and "hidden_size was [4], is [9]" in found.stdout, found.stdout
