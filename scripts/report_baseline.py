"""Write the report of searches for networks without BERT, next to other systems on the same tasks.

    python scripts/report_baseline.py --search=runs/search_sms,runs/search_stance --results=runs/sweep/results.csv \\
      --output=runs/report

The folder contains a page in Markdown (search history, importance of the settings, scores and differences), figures,
and Table 2 of the paper (Markdown, CSV and LaTeX).
"""

from __future__ import annotations

from typing import Sequence

from absl import app, flags

from adapter_bert.common import errors, system

system.configure_tensorflow()

from adapter_bert.baselines import report
from adapter_bert.common import logs
from adapter_bert.settings import flags as settings_lib

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Write the report and print the path of its page."""
    settings_lib.reject_positional_args(argv)
    logs.show_progress()
    print(report.write(FLAGS.search, FLAGS.results, FLAGS.output))


if __name__ == "__main__":
    flags.DEFINE_list("search", None, "Output folders of the searches, separated by commas.")
    flags.DEFINE_list("results", [], "results.csv of sweeps with other systems, separated by commas.")
    flags.DEFINE_string("output", None, "Folder for the report.")
    flags.mark_flags_as_required(["search", "output"])
    app.run(main)
