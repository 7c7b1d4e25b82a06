r"""Run a sweep: tasks × methods × settings × seeds.

    python scripts/run_sweep.py --sweep=sweep.toml --output_dir=runs/sweep
    python scripts/run_sweep.py --preset=glue --data_dir='glue_data/{task}' --bert_dir=bert --output_dir=runs/glue

docs/sweeps.md describes sweep files and presets. All flags of run_classifier.py (for SQuAD sweeps, of run_squad.py) are
accepted and override those in the file. To resume an interrupted sweep, repeat the command: interrupted runs continue
where they stopped, and finished ones are not repeated. A failed run does not stop the others.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Sequence

from absl import app, flags

from adapter_bert.common import errors, system
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.settings.squad import SquadSettings

system.configure_tensorflow()

from adapter_bert.common import logs
from adapter_bert.experiments import cells, estimates, launchers, sweep_file, sweep_runner
from adapter_bert.experiments.sweep_folder import TIMINGS_FILE, SweepFolder, read_times

FLAGS = flags.FLAGS


def given_flags() -> Dict[str, Any]:
    """Return the run flags set on the command line, and `tasks` and `seeds` of the sweep if they are set."""
    names = {field for kind in (ClassifierSettings, SquadSettings) for field in kind.__dataclass_fields__}
    names -= {"output_dir", "workers"}  # this program has its own
    changes = {name: FLAGS[name].value for name in sorted(names) if FLAGS[name].present}
    if FLAGS.tasks:
        changes["tasks"] = list(FLAGS.tasks)
    if FLAGS.seeds:
        if not all(seed.strip().isdigit() for seed in FLAGS.seeds):
            raise errors.UserError(f"--seeds={','.join(FLAGS.seeds)}: expected integers, e.g. 1,2,3.")
        changes["seeds"] = [int(seed) for seed in FLAGS.seeds]
    return changes


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Run the sweep and print its table."""
    settings_lib.reject_positional_args(argv)
    logs.show_progress(settings_lib.verbosity(FLAGS))
    if bool(FLAGS.sweep) == bool(FLAGS.preset):
        raise errors.UserError("Set either --sweep or --preset.")
    sweep = sweep_file.read(FLAGS.sweep or sweep_file.preset_path(FLAGS.preset), given_flags())
    folder = SweepFolder(FLAGS.output_dir)
    workers = FLAGS.workers or launchers.default_workers()
    if FLAGS.dry_run:
        print(estimates.estimate(sweep, folder, workers))
        return
    # Check everything before the first write: the folder accepts no other sweep afterwards.
    known = {result.name: result for result in cells.read(FLAGS.known_results)} if FLAGS.known_results else {}
    times = read_times(os.path.join(os.path.dirname(FLAGS.known_results or ""), TIMINGS_FILE)) if known else {}
    executor = launchers.make_executor(folder, sweep_runner.parse_options(FLAGS.slurm)) if FLAGS.slurm else None
    if not executor:
        launchers.core_groups(workers)
    if not folder.exists():
        estimates.check_data(sweep, folder, known)
    sweep = folder.start(sweep)
    if FLAGS.retry_failed:
        folder.forget_failures(sweep)
    if known:
        print(f"{folder.add_known(sweep, known, times)} runs are taken from {FLAGS.known_results}.")
    if executor:
        jobs = launchers.submit(folder, workers, executor)
        report = f"python scripts/make_report.py --sweep={FLAGS.output_dir}"
        print(f"Submitted {len(jobs)} workers: {', '.join(jobs)}. For the results so far, run: {report}")
        return
    if not sweep_runner.run(sweep, folder, workers):
        sys.exit("run_sweep.py: some runs have failed; see above. --retry_failed runs them again.")


if __name__ == "__main__":
    settings_lib.define_flags(ClassifierSettings)
    settings_lib.define_flags(SquadSettings)
    flags.DEFINE_string("sweep", None, "Path of a sweep file (TOML).")
    flags.DEFINE_string("preset", None, "Name of a built-in sweep file, e.g. glue.")
    flags.DEFINE_list("tasks", None, "Tasks to run, separated by commas. Default: those of the sweep file.")
    flags.DEFINE_list("seeds", None, "Seeds, separated by commas. Default: those of the sweep file.")
    flags.DEFINE_integer("workers", None, "Number of processes. Default: one per GPU, or one per core.", lower_bound=1)
    flags.DEFINE_string(
        "slurm", None, "Run the workers as SLURM jobs with these options, e.g. timeout_min=600,partition=cpu."
    )
    flags.DEFINE_string(
        "known_results", None, "results.csv of this sweep, e.g. from another machine; its runs are not repeated."
    )
    flags.DEFINE_bool("dry_run", False, "Only print the number of runs, and the estimated time and disk space.")
    flags.DEFINE_bool("retry_failed", False, "Run failed runs again.")
    flags.mark_flags_as_required(["output_dir"])
    app.run(main)
