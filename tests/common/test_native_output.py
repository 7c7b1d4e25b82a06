"""Messages of TensorFlow's C++ code are hidden while it is imported, except when the import fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adapter_bert.common import native_output

pytestmark = pytest.mark.smoke

IMPORT = "from adapter_bert.common import system; system.configure_tensorflow({}); import tensorflow"


def stderr_of(code: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**env, **variables}, stderr=subprocess.PIPE
    ).stderr.decode()


def test_a_program_imports_tensorflow_without_a_message():
    assert stderr_of(IMPORT.format("")) == ""


@pytest.mark.parametrize("argument, folder", [("", "fake"), ("verbose=True", "fake")])
def test_a_failed_import_and_a_verbose_program_show_everything(tmp_path, argument, folder):
    package = tmp_path / folder / "tensorflow"
    package.mkdir(parents=True)
    failure = "raise ImportError('broken')" if not argument else ""
    (package / "__init__.py").write_text("import os; os.write(2, b'native message')\n" + failure)
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", os.getcwd())])
    found = stderr_of(IMPORT.format(argument), PYTHONPATH=path)
    assert "native message" in found and ("broken" in found) is (not argument)


def test_text_is_hidden_inside_the_context_only(capfd):
    with native_output.hidden():
        os.write(2, b"inside")
    os.write(2, b"outside")
    assert capfd.readouterr().err == "outside"


def test_text_is_shown_if_the_context_ends_with_an_exception(capfd):
    with pytest.raises(ValueError, match="failed"), native_output.hidden():
        os.write(2, b"inside")
        raise ValueError("failed")
    assert capfd.readouterr().err == "inside"
