"""What an attack found, as commands: each test fails on commit c32a6ab.

    ADAPTER_BERT_ROOT=/path/to/checkout pytest -m long tests/faults/test_attack.py

runs the commands of another checkout. The inputs are created by this one.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from typing import Any, Dict, List

import pytest

from adapter_bert.weights import bases, packs
from tests import helpers
from tests.common import index_files
from tests.faults import commands
from tests.faults.harness import KINDS, compile_shim
from tests.kill import Program
from tests.tasks import test_archives

pytestmark = pytest.mark.long

ROOT = os.environ.get("ADAPTER_BERT_ROOT", helpers.ROOT)
SECONDS = 200  # An ordinary command takes a tenth of this.

LIST = commands.COMMANDS["bank list"].line
# Kill the process at a file operation of a script.
KILLED = """
import ctypes, os, runpy, sys
root, at, kind, trace, *sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
ctypes.CDLL(None).fault_arm(os.fsencode(root), b"", ctypes.c_long(int(at)), int(kind), os.fsencode(trace), b"")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def environment(**variables: str) -> Dict[str, str]:
    return dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="1", **variables)


def command(line: List[str]) -> List[str]:
    return [sys.executable, os.path.join(ROOT, line[0]), *line[1:]]


def run(line: List[str], folder: Any, shell: str = "{}", **variables: str) -> subprocess.CompletedProcess:
    """Run a script in a folder; `shell` says how."""
    return subprocess.run(
        ["bash", "-c", shell.format('"$0" "$@"'), *command(line)],
        cwd=str(folder),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
    )


def succeed(line: List[str], folder: Any, **variables: str) -> str:
    done = run(line, folder, **variables)
    assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout[-2000:]
    return done.stdout


def fail(line: List[str], folder: Any, *facts: object, shell: str = "{}") -> None:
    """Check that a command ends with an error of one line that mentions the facts."""
    done = run(line, folder, shell)
    assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout[-2000:]
    last = done.stdout.strip().split("\n")[-1]
    helpers.assert_mentions(last, ".py: error: ", *facts)


def train(**changes: Any) -> List[str]:
    flags = dict(commands.CLASSIFIER, do_train="true", do_eval="true")
    flags.update(changes)
    return ["run_classifier.py", *(f"--{name}={value}" for name, value in flags.items() if value is not None)]


def train_custom(train_file: str) -> List[str]:
    return train(task_name="mine", data_dir=None, train_file=train_file)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> str:
    """A folder with a base, a task, two packs, and a bank with them. Read only."""
    folder = str(tmp_path_factory.mktemp("inputs"))
    for step in ("bert", "packs", "cola"):
        commands.PREPARATION[step](folder)
    for step in ("bank", "one", "two"):
        line = commands.PREPARATION[step]
        subprocess.run([sys.executable, os.path.join(helpers.ROOT, line[0]), *line[1:]], cwd=folder, check=True)
    return folder


@pytest.fixture
def here(inputs, tmp_path):
    """A folder with copies of the inputs."""
    return shutil.copytree(inputs, tmp_path / "here")


def rows(count: int = 40) -> str:
    """Return labeled texts as JSON lines."""
    return "".join(json.dumps({"text": f"the cat {n}", "label": "ab"[n % 2]}) + "\n" for n in range(count))


def tar_of_texts(count: int) -> bytes:
    """Return a tar archive with a text per member, in folders of two labels."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(count):
            info = tarfile.TarInfo(f"{'ab'[number % 2]}/{number:03}.txt")
            text = b"the cat %03d" % number
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


def content(folder: Any) -> Dict[str, bytes]:
    """Return the files below a folder."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def change_json(path: Any, **changes: Any) -> None:
    with open(path) as file:
        values = json.load(file)
    with open(path, "w") as file:
        json.dump(dict(values, **changes), file)


def test_01_cleaning_up_follows_no_link_and_keeps_folders_of_users(here, tmp_path):
    helpers.write_file(tmp_path, "precious/thesis.txt", "x")
    helpers.write_file(here, "run/y.12345678.partial/thesis.txt", "x")
    os.symlink(tmp_path / "precious", here / "run" / "x.12345678.partial")
    succeed(train(), here)
    assert (tmp_path / "precious" / "thesis.txt").exists()
    assert (here / "run" / "y.12345678.partial" / "thesis.txt").exists()


def test_02_saving_removes_only_checkpoints_of_the_run(here, tmp_path):
    line = train(save_checkpoints_steps=1, eval_every_steps=0, num_train_epochs=3)
    program = Program(command(line), cwd=str(here), env=environment())
    state = here / "run" / "checkpoint"
    program.wait_until(lambda: state.exists() and "ckpt-3" in state.read_text()).kill()
    others = [tmp_path / f"model.ckpt-{number}" for number in range(1, 9)]
    for other in others:
        for ending in (".index", ".data-00000-of-00001", ".meta"):
            helpers.write_file(tmp_path, other.name + ending, "x")
    before = content(tmp_path)
    listed = "".join(f'all_model_checkpoint_paths: "{other}"\n' for other in others)
    latest, _, rest = state.read_text().partition("\n")
    state.write_text(f"{latest}\n{listed}{rest}")
    succeed(line, here)
    after = content(tmp_path)
    assert [name for name in before if "here" not in name and name not in after] == []


@pytest.mark.parametrize("name", ["settings.json", "results.json", "eval_results.txt"])
def test_03_a_run_does_not_overwrite_its_data(here, name):
    helpers.write_file(here, f"run/{name}", rows())
    fail(train_custom(f"run/{name}"), here, name)
    assert (here / "run" / name).read_text() == rows()


def test_03_a_squad_run_does_not_overwrite_its_data(here):
    os.mkdir(here / "run")
    path = helpers.write_squad(str(here / "run" / "settings.json"), 6)
    before = content(here / "run")
    flags = dict(commands.SQUAD, train_file=path, do_train="true")
    flags.pop("predict_file")
    fail(["run_squad.py", *(f"--{key}={value}" for key, value in flags.items())], here, path)
    assert content(here / "run") == before


def test_03_settings_of_another_program_are_kept(here):
    helpers.write_file(here, "run/settings.json", '{"theme": "dark"}')
    fail(train(), here, "run/settings.json")
    assert (here / "run" / "settings.json").read_text() == '{"theme": "dark"}'


@pytest.mark.parametrize("kind", ["flipped bit", "cut"])
def test_04_a_damaged_archive_is_an_error(here, kind):
    data = bytearray(tar_of_texts(100))
    if kind == "cut":
        del data[62 * 512 :]
    else:
        data[60 * 512 + 2] ^= 1  # the name in the 31st header
    helpers.write_file(here, "texts.tar", bytes(data))
    fail(train_custom("texts.tar"), here, "texts.tar")


def test_04_a_hard_link_counts_as_a_file(here):
    buffer = io.BytesIO(tar_of_texts(40))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        info = tarfile.TarInfo("a/link.txt")
        info.type, info.linkname = tarfile.LNKTYPE, "a/000.txt"
        archive.addfile(info)
    helpers.write_file(here, "texts.tar", buffer.getvalue())
    assert "37 train rows" in succeed(train_custom("texts.tar"), here)


def test_04_sizes_are_checked_before_anything_is_read(here):
    data = test_archives.pax_member("a/000.txt", b"the cat", size=10**20) + test_archives.END
    helpers.write_file(here, "texts.tar", data)
    fail(train_custom("texts.tar"), here, "texts.tar")


def test_05_two_trainings_in_one_folder_do_not_mix(here):
    programs = [Program(command(train(seed=seed)), cwd=str(here), env=environment()) for seed in (1, 2)]
    outputs = [program.process.communicate(timeout=SECONDS)[0] for program in programs]
    codes = [program.process.returncode for program in programs]
    assert sorted(codes) == [0, 1], outputs
    refused = outputs[codes.index(1)].strip().split("\n")[-1]
    helpers.assert_mentions(refused, "run_classifier.py: error: ", f"process {programs[codes.index(0)].process.pid}")
    with open(here / "run" / "results.json") as file:
        assert json.load(file)["seed"] == codes.index(0) + 1


def test_06_a_huge_number_of_layers_is_an_error(here):
    change_json(here / "bert" / "bert_config.json", num_hidden_layers=10**9)
    fail(train(), here, "num_hidden_layers", "bert_config.json")


def test_06_a_huge_number_of_layers_in_a_hugging_face_config_is_an_error(here):
    succeed(commands.PREPARATION["hf"], here)
    change_json(here / "hf" / "config.json", num_hidden_layers=10**9)
    fail(commands.PREPARATION["google"], here, "num_hidden_layers", "config.json")


def test_06_a_huge_head_in_an_adapterhub_folder_is_an_error(here):
    succeed(commands.PREPARATION["hub"], here)
    path = here / "out" / "hub" / "head_config.json"
    config = json.loads(path.read_text())["config"]
    change_json(path, config=dict(config, num_labels=10**9, label2id=None))
    fail(commands.COMMANDS["bank import hub"].line, here, "head_config.json")


def test_06_a_fifo_in_a_bank_is_never_opened(here):
    os.mkfifo(here / "bank" / "packs" / "pipe.safetensors")
    done = run(LIST, here)
    helpers.assert_mentions(done.stdout, "pipe", "FIFO", "one", "two")


@pytest.mark.parametrize("value", ["[" * 100000, "1" * 400])
def test_07_bad_json_is_one_clear_error(here, value):
    path = here / "bert" / "bert_config.json"
    path.write_text(re.sub(r'("num_hidden_layers": )\d+', lambda match: match.group(1) + value, path.read_text()))
    fail(train(), here, "bert_config.json")
    manifest = here / "bank" / "bank.json"
    manifest.write_text(re.sub(r'("format": )"?[^",]+"?', lambda match: match.group(1) + value, manifest.read_text()))
    fail(LIST, here, "bank.json")


@pytest.mark.parametrize("target", ["nothing", "loop.safetensors"])
@pytest.mark.parametrize("operation", ["list", "verify"])
def test_07_a_bad_pack_does_not_hide_the_others(here, operation, target):
    os.symlink(target, here / "bank" / "packs" / "loop.safetensors")
    (here / "bank" / "packs" / "two.safetensors").write_bytes(b"\xff" * 100)
    done = run(commands.COMMANDS[f"bank {operation}"].line, here)
    assert done.returncode == (operation == "verify") and "Traceback" not in done.stdout
    for name in ("loop", "two"):
        assert re.search(rf"BAD\s+{name}\b", done.stdout), done.stdout
    assert re.search(r"\bone\b", done.stdout)


def test_08_json_lines_with_many_keys_need_little_memory(here):
    lines = (dict({f"k{n}_{k}": 0 for k in range(10)}, text=f"the cat {n}", label="ab"[n % 2]) for n in range(7000))
    helpers.write_file(here, "wide.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    line = train(task_name="mine", data_dir=None, train_file="wide.jsonl", num_train_epochs=0.01)
    with open(here / "log", "w") as log:
        process = subprocess.Popen(command(line), cwd=str(here), env=environment(), stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0 and usage.ru_maxrss * 1024 < 2 * 10**9


def test_09_overwrite_never_writes_into_the_base_of_the_bank(here):
    before = content(here / "bank")
    line = ["scripts/bank.py", "export", "--bank=bank", "one", "--format=checkpoint", "--overwrite"]
    fail([*line, "--output=bank/base/bert_model.ckpt"], here, "bank")
    assert content(here / "bank") == before


def killed(line: List[str], folder: Any, shim: str, at: int) -> List[str]:
    """Kill a command at an operation; return the operations up to there."""
    trace = os.path.join(os.path.dirname(shim), "trace")
    arguments = [str(folder), str(at), str(KINDS.index("kill")), trace]
    subprocess.run(
        [sys.executable, "-c", KILLED, *arguments, *command(line)[1:]],
        cwd=str(folder),
        env=environment(LD_PRELOAD=shim),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the whole of which is killed
        timeout=SECONDS,
    )
    with open(trace) as file:
        return [each.strip() for each in file if not each.startswith("outside")]


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> str:
    return compile_shim(str(tmp_path_factory.mktemp("shim")))


def test_10_a_killed_overwrite_leaves_the_old_or_the_new_export(here, shim, tmp_path):
    line = commands.COMMANDS["bank export hub, overwrite"].line
    succeed(commands.PREPARATION["hub"], here)
    old = content(here / "out" / "hub")
    new_folder = shutil.copytree(here, tmp_path / "new")
    operations = killed(line, new_folder, shim, 10**6)
    new = content(new_folder / "out" / "hub")
    assert old != new
    renames = [number for number, operation in enumerate(operations, 1) if operation.startswith("rename")]
    assert renames
    for number in renames[1:] + [renames[-1] + 1]:
        folder = shutil.copytree(here, tmp_path / str(number))
        killed(line, folder, shim, number)
        assert content(folder / "out" / "hub") in (old, new), operations[:number]


def test_11_the_next_run_removes_what_a_killed_one_left(here, shim, tmp_path):
    complete = shutil.copytree(here, tmp_path / "complete")
    operations = killed(train(), complete, shim, 10**6)
    at_rename = re.compile(r"rename.*(/checkpoint|\.tf_?record)")
    numbers = [number for number, operation in enumerate(operations, 1) if at_rename.match(operation)]
    assert numbers
    for number in (numbers[0], numbers[-1]):
        folder = shutil.copytree(here, tmp_path / str(number))
        killed(train(), folder, shim, number)
        succeed(train(), folder)
        names = [{re.sub(r"events\.out.*", "events", name) for name in content(each)} for each in (folder, complete)]
        assert names[0] - names[1] == set()


def test_12_a_training_without_streams_completes(here):
    assert run(train(), here, "{} >&- 2>&-").returncode == 0
    assert (here / "run" / "results.json").exists()


def test_12_a_terminal_of_ascii_shows_any_label(here):
    pack = helpers.make_pack(bases.Base.find(str(here / "bert")), labels=["a", "猫"])
    packs.write(str(here / "bank" / "packs" / "cats.safetensors"), pack)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert r"\u732b" in succeed(["scripts/bank.py", "show", "--bank=bank", "cats"], here, **ascii_only)


def test_12_a_lone_surrogate_as_a_label_gives_no_traceback(here):
    helpers.write_file(here, "labels.jsonl", rows().replace('"a"', '"\\ud800"'))
    done = run(train_custom("labels.jsonl"), here)
    assert "Traceback" not in done.stdout and done.returncode in (0, 1)


def test_12_names_that_are_not_utf8_are_one_error(here):
    fail(train(output_dir=os.fsdecode(b"caf\xe9")), here, r"caf\udce9")


def test_12_a_deleted_working_directory_is_one_error(here):
    fail(LIST, here, "working directory", shell='mkdir gone && cd gone && rmdir "$PWD" && {}')


def test_12_optimized_python_is_one_error_or_works(here):
    assert "Traceback" not in run(LIST, here, PYTHONOPTIMIZE="2").stdout


def test_12_help_fits_into_one_column(here):
    assert "--learning_rate" in run(["run_classifier.py", "--helpfull"], here, COLUMNS="1").stdout


def test_12_lack_of_memory_is_one_error(here):
    fail(LIST, here, "memory", shell="ulimit -v 300000; {}")


@pytest.mark.parametrize("name", ["TF_DETERMINISTIC_OPS", "TF_USE_LEGACY_KERAS"])
def test_12_variables_of_other_programs_do_no_harm(here, name):
    succeed(train(), here, **{name: "1"})


def test_13_a_crafted_index_does_not_abort(here):
    index = index_files.index_of({b"a": index_files.entry((-2,), size=8)})
    (here / "bert" / "bert_model.ckpt.index").write_bytes(index)
    fail(train(), here, "bert_model.ckpt.index")


def test_14_escape_codes_and_line_breaks_are_printed_escaped(here):
    helpers.write_file(here, "labels.jsonl", rows().replace('"a"', '"\\u001b[31mred\\nINFO fake"'))
    done = run(train_custom("labels.jsonl"), here)
    assert "red" in done.stdout
    assert "\x1b" not in done.stdout and "\nINFO fake" not in done.stdout


def test_14_a_refused_file_is_named_with_the_reason(here):
    line = commands.PREPARATION["checkpoint"]
    fail(line, here, "out/", "File too large", shell="trap '' XFSZ; ulimit -f 1; {}")


def test_14_files_in_the_folder_of_a_group_are_group_writable(here):
    for line in (train(), ["scripts/bank.py", "add", "--bank=bank", "run", "--name=new"]):
        assert run(line, here, "umask 002; {}").returncode == 0
    paths = [
        os.path.join(here, name) for name in ("run/results.json", "run/settings.json", "bank/packs/new.safetensors")
    ]
    assert [path for path in paths if not os.stat(path).st_mode & 0o020] == []
