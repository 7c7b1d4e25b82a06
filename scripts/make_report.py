"""Write the report of a sweep: a self-contained HTML page, and the tables and figures as separate files.

    python scripts/make_report.py --sweep=runs/sweep

The page is `report.html` in the folder of the sweep. Next to it are the folders `tables` (Markdown, CSV and LaTeX) and
`figures` (PNG and SVG), and `results.csv` with one row per cell, e.g. for pandas. The sweep may be unfinished; run the
command again to update the report.
"""

from __future__ import annotations

from typing import Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.experiments import report
from adapter_bert.settings import flags as settings_lib

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Write the report and print its path."""
    settings_lib.reject_positional_args(argv)
    print(report.write(FLAGS.sweep, FLAGS.output))


if __name__ == "__main__":
    flags.DEFINE_string("sweep", None, "Output folder of the sweep.")
    flags.DEFINE_string("output", "", "HTML file to write. Default: report.html in the folder of the sweep.")
    flags.mark_flags_as_required(["sweep"])
    app.run(main)
