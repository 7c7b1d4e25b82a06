"""Write the report of a sweep: a self-contained HTML page, and the tables and figures as separate files.

    python scripts/make_report.py --sweep=runs/sweep
    python scripts/make_report.py --sweep=runs/adapter_sizes,runs/variable_finetuning,runs/layer_norm

The page is `report.html` in the folder of the (first) sweep. Next to it are the folders `tables` (Markdown, CSV and
LaTeX) and `figures` (PNG and SVG), and `results.csv` with one row per cell, e.g. for pandas. If the sweep is
unfinished, run the command again later to update the report.
"""

from __future__ import annotations

import os
from typing import Sequence

from adapter_bert.common import system

system.configure_tensorflow()

import tensorflow.compat.v1 as tf
from absl import app, flags

from adapter_bert.common import errors, logs
from adapter_bert.experiments import report
from adapter_bert.experiments.sweep_folder import RESULTS_FILE, SWEEP_FILE, SweepFolder
from adapter_bert.settings import flags as settings_lib

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Write the report and print its path."""
    settings_lib.reject_positional_args(argv)
    logs.show_progress()
    for folder in map(SweepFolder, FLAGS.sweep):
        try:
            folder.write_results(folder.sweep())
        except errors.UserError as error:
            if os.path.exists(folder.file(SWEEP_FILE)):  # otherwise the report raises the same error
                tf.logging.warning("%s is not updated: %s", folder.file(RESULTS_FILE), error)
    print(report.write(FLAGS.sweep, FLAGS.output))


if __name__ == "__main__":
    flags.DEFINE_list("sweep", None, "Output folder of the sweep; several, separated by commas, share one report.")
    flags.DEFINE_string("output", "", "HTML file to write. Default: report.html in the first folder.")
    flags.mark_flags_as_required(["sweep"])
    app.run(main)
