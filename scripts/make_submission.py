"""Pack the test predictions of finished runs into the zip file that GLUE's server accepts.

    python scripts/make_submission.py --runs=runs/cola,runs/sst2 --output=submission.zip
    python scripts/make_submission.py runs

The folder of a run contains `<TASK>.tsv` (`CoLA.tsv`, `MNLI-m.tsv`, …), written by `--do_predict`. Every folder is
searched two levels deep. If several runs have predicted a task, the one with the best primary metric in its
`results.json` is used, so you can pass the runs of all seeds.
"""

from __future__ import annotations

from typing import Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.evaluation import glue_submission


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Write the zip file and print a summary."""
    values = flags.FLAGS
    folders = values.runs + list(argv[1:])
    print(glue_submission.make_submission(folders, values.output, values.allow_missing, values.overwrite))


if __name__ == "__main__":
    flags.DEFINE_list("runs", [], "Folders of runs, or folders that contain them; more may follow the flags.")
    flags.DEFINE_string("output", "submission.zip", "The zip file to write.")
    flags.DEFINE_bool("allow_missing", False, "Write the zip file even if tasks have no predictions.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing zip file.")
    app.run(main)
