r"""Search for the best network without BERT: the paper's search space (its Table 5), with Optuna.

    python scripts/search_baseline.py --task_name=sms_spam_collection --data_dir=data --trials=60 \
      --output_dir=runs/search_sms

All flags of run_baseline.py are accepted. Those of the network fix a row of the space, e.g.
--fine_tune_module=false; --space=space.toml changes several. To resume an interrupted search, repeat the command.
docs/baselines.md describes the results.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from absl import app, flags

from adapter_bert.baselines import space
from adapter_bert.baselines.settings import BaselineSettings
from adapter_bert.common import errors, system
from adapter_bert.settings import flags as settings_lib

system.configure_tensorflow()

from adapter_bert.baselines import search
from adapter_bert.baselines.search_folder import SearchFolder
from adapter_bert.common import logs
from adapter_bert.experiments import launchers

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Run the search and print the best setting."""
    settings_lib.reject_positional_args(argv)
    logs.show_progress(settings_lib.verbosity(FLAGS))
    if FLAGS.preset:
        raise errors.UserError("--preset is for run_baseline.py: a search chooses its settings itself.")
    if not all(seed.strip().isdigit() for seed in FLAGS.final_seeds):
        raise errors.UserError(f"--final_seeds={','.join(FLAGS.final_seeds)}: expected integers, e.g. 1,2,3.")
    changed = {name: FLAGS[name].value for name in space.TABLE if FLAGS[name].present}
    options = {name: FLAGS[name].value for name in ("space", "study", "trials", "storage")}
    options["final_seeds"] = [int(seed) for seed in FLAGS.final_seeds]
    # This program has its own --workers.
    settings = dataclasses.replace(settings_lib.from_flags(BaselineSettings, FLAGS), workers=None)
    found = search.make(settings, changed, options)
    workers = FLAGS.workers or launchers.default_workers()
    launchers.core_groups(workers)
    search.check_inputs(found)
    folder = SearchFolder(FLAGS.output_dir)
    folder.start(found)
    search.run(folder, found, workers, FLAGS.storage)


if __name__ == "__main__":
    flags.DEFINE_integer("trials", 60, "Number of trials in total, with those of earlier commands.", lower_bound=1)
    flags.DEFINE_integer("workers", None, "Number of processes. Default: one per GPU, or one per core.", lower_bound=1)
    flags.DEFINE_string("space", None, "TOML file that changes rows of the search space.")
    flags.DEFINE_string("study", None, "Name of the study in the storage. Default: --task_name.")
    flags.DEFINE_string(
        "storage", None, "postgresql://USER:PASSWORD@HOST/DATABASE, for workers on many machines. Default: a journal."
    )
    flags.DEFINE_list("final_seeds", ["1", "2", "3"], "Seeds with which the best setting is trained again.")
    settings_lib.define_flags(BaselineSettings)
    flags.mark_flags_as_required(["task_name", "output_dir"])
    app.run(main)
