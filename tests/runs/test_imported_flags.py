"""Scripts and notebooks import `run_classifier` and `run_squad`, set their flags and call `main`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

import run_classifier
import run_squad
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.squad import SquadSettings
from tests.helpers import ROOT, assert_mentions, write_squad
from tests.runs.helpers import read_json

# A notebook: its kernel has a flag of its own. It defines two flags that the modules have too.
NOTEBOOK = """
import importlib, sys
sys.argv = ["kernel.py", "-f", "kernel.json"]
from absl import flags
flags.DEFINE_string("data_dir", "mine", "")
import run_squad, run_classifier
importlib.reload(run_classifier)
flags.DEFINE_integer("seed", 7, "")
FLAGS = run_classifier.tf.flags.FLAGS
FLAGS.learning_rate = 1e-3
for script, kind in ((run_classifier, run_classifier.ClassifierSettings), (run_squad, run_squad.SquadSettings)):
    settings = script.settings_lib.from_flags(kind, script.FLAGS)
    print([getattr(settings, name, None) for name in ("max_seq_length", "data_dir", "seed", "learning_rate")])
"""


@pytest.mark.smoke
def test_a_notebook_may_import_both_modules_reload_them_and_define_flags_of_its_own():
    environment = dict(os.environ, PYTHONPATH=ROOT)
    output = subprocess.check_output([sys.executable, "-c", NOTEBOOK], env=environment, text=True)
    assert output.splitlines() == ["[128, 'mine', 7, 0.001]", "[384, None, 7, 0.001]"]


@pytest.mark.smoke
def test_main_runs_with_the_flags_that_a_script_sets(finished):
    os.remove(os.path.join(finished["output_dir"], "results.json"))
    with flagsaver.flagsaver():
        flags.FLAGS(["script.py", *(f"--{name}={value}" for name, value in finished.items())])
        flags.FLAGS.do_eval = True
        run_classifier.main([])
    assert read_json(finished["output_dir"], "results.json")["task"] == "CoLA"


@pytest.mark.parametrize("module, missing", [(run_classifier, "--task_name"), (run_squad, "--output_dir")])
def test_main_reports_missing_flags_in_one_line(module, missing):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as stop:
        module.main([])
    assert_mentions(stop.value.code, missing)


def test_main_reports_invalid_flags_in_one_line(tmp_path):
    path = write_squad(str(tmp_path / "squad.json"), 2)
    values = {"bert_config_file": path, "output_dir": str(tmp_path / "out"), "predict_file": path, "doc_stride": 0}
    with flagsaver.flagsaver(do_predict=True, **values), pytest.raises(SystemExit) as stop:
        run_squad.main([])
    assert_mentions(stop.value.code, "--doc_stride", "1 or more")
    assert not os.path.exists(tmp_path / "out")


def test_each_module_keeps_its_default_unless_the_program_changes_it():
    values = flags.FlagValues()
    settings_lib.define_flags(SquadSettings, values)
    settings_lib.define_flags(ClassifierSettings, values)
    lengths = [settings_lib.from_flags(each, values).max_seq_length for each in (ClassifierSettings, SquadSettings)]
    assert lengths == [128, 384]
    values.set_default("max_seq_length", 64)
    lengths = [settings_lib.from_flags(each, values).max_seq_length for each in (ClassifierSettings, SquadSettings)]
    assert lengths == [64, 64]
