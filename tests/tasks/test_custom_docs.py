"""The commands in docs/custom_data.md read public data sets completely. Files that are missing are skipped."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from typing import Dict

import pytest

from adapter_bert.tasks import custom
from adapter_bert.tasks.custom import CustomData
from tests.helpers import ROOT, SHARED

pytestmark = pytest.mark.smoke
FLAGS = [field.name for field in dataclasses.fields(CustomData)]
# Task -> number of labels, rows of the training file, rows of the dev file if there is one.
PUBLISHED = {
    "SMSSpam": (2, 5574, None),
    "Airline": (3, 14640, None),
    "CorporateMessaging": (4, 3118, None),
    "Emotion": (13, 40000, None),
    "GlobalWarming": (2, 4225, None),
    "PoliticalAudience": (2, 5000, None),
    "PoliticalBias": (2, 5000, None),
    "PoliticalMessage": (9, 5000, None),
    "Plutchik": (18, 2524, None),
    "TweetStance": (4, 1159, None),
    "TweetOpinion": (3, 1159, None),
    "EconomicNews": (0, 5015 - 2116, None),
    "NewsAggregator": (4, 8878, 1109),
    "20News": (20, 11314, 7532),
}


def documentation() -> str:
    with open(os.path.join(ROOT, "docs", "custom_data.md"), encoding="utf-8") as file:
        return file.read()


def documented_data() -> Dict[str, CustomData]:
    """Return the custom data of each command, by task."""
    found = {}
    for block in re.findall(r"```bash\n(.*?)\n```", documentation(), re.DOTALL):
        assert all(line.endswith(" \\") for line in block.split("\n")[:-1])
        python, script, *words = shlex.split(block.replace("\\\n", "").replace("$DATA", f"{SHARED}/data/text"))
        assert (python, script) == ("python", "run_classifier.py")
        flags = dict(word[2:].split("=", 1) for word in words)
        settings = {name: flags[name] for name in FLAGS if name in flags}
        for name, parse in (("labels", custom.parse_list), ("label_map", custom.parse_map)):
            if name in settings:
                settings[name] = parse(settings[name])
        found[flags["task_name"]] = CustomData(**settings)
    return found


def test_the_documentation_describes_every_flag_and_has_a_command_for_each_data_set():
    assert FLAGS and [name for name in FLAGS if f"| `--{name}` |" not in documentation()] == []
    assert list(documented_data()) == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_files_have_their_published_numbers_of_rows(name):
    labels, rows, dev_rows = PUBLISHED[name]
    data = documented_data()[name]
    path = data.train_file.split("//")[0]
    if not os.path.exists(path):
        pytest.skip(f"a real file is missing: {path}")
    task, examples = custom.read(name, data, ("train", "dev", "test") if data.test_file else ("train", "dev"))
    assert len(task.labels) == labels
    assert len(examples["train"]) + (0 if dev_rows else len(examples["dev"])) == rows
    share = len(examples["dev"]) / rows
    assert len(examples["dev"]) == dev_rows if dev_rows else share == pytest.approx(0.1, abs=0.02)
    assert len(examples.get("test", ())) == (1109 if data.test_file else 0)
    assert all(example.text_a.strip() for split in examples.values() for example in split)
