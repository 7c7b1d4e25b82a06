r"""Train a stream of tasks on one frozen base, and verify after each task that earlier ones are unchanged.

    python scripts/run_stream.py --bank=runs/bank --base_dir=bases/minilm --tasks=tasks.txt --output_dir=runs/stream \
      --train_batch_size=16 --learning_rate=5e-4 --num_train_epochs=3

`tasks.txt` has one line of flags per task, in order of arrival. Flags on the command line apply to all tasks:

    --task_name=CoLA --data_dir=glue_data/CoLA --max_seq_length=20
    --task_name=spam --train_file=sms.tsv --text_column=2 --label_column=1     # custom data

Each task is trained and its pack is added to the bank, which is created if necessary. Then all packs of the stream are
evaluated again. The exit code is 1 if a score or a prediction has changed. The same command continues an interrupted
stream: finished tasks are not trained again, but all evaluations are repeated.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Sequence

from adapter_bert.common import system

system.configure_tensorflow()

from absl import app, flags

from adapter_bert.common import errors, files, logs, paths
from adapter_bert.experiments import stream
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.classifier import ClassifierSettings
from adapter_bert.weights import bases
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import known_bases

FLAGS = flags.FLAGS


def find_bank(folder: str, base_dir: str) -> Bank:
    """Open the bank, or create it from `base_dir` if it does not exist."""
    base = bases.Base.find(known_bases.provide(base_dir)) if base_dir else None
    if not paths.exists(folder):
        if base is None:
            raise errors.UserError(f"There is no bank {folder}: set --base_dir to create one from that base.")
        return Bank.create(folder, base)
    bank = Bank.open(folder)
    if base and base.digests != bank.manifest["tensors"]:
        raise errors.UserError(f"The bank {folder} has a base other than --base_dir={base_dir}: use another --bank.")
    return bank


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Train the stream and print a summary."""
    settings_lib.reject_positional_args(argv)
    common = settings_lib.from_flags(ClassifierSettings, FLAGS)
    for name in stream.BASE_FLAGS:
        if getattr(common, name):
            raise errors.UserError(f"--{name} cannot be used in a stream: set the base with --base_dir.")
    logs.show_progress(all_lines=False)
    tasks = stream.read_tasks(FLAGS.tasks, dataclasses.replace(common, do_train=True, do_eval=True))
    files.make_folder(common.output_dir)
    with files.user_errors():
        bank = find_bank(FLAGS.bank, FLAGS.base_dir)
    learning = stream.Stream(bank, tasks, common.output_dir)
    table = learning.learn()
    print(stream.format_parameters(learning.count_parameters(list(table))))
    equal, compared = stream.compare(table)
    if equal != compared:
        sys.exit(f"run_stream.py: {compared - equal} of {compared} repeated evaluations differ from the first one.")


if __name__ == "__main__":
    settings_lib.define_flags(ClassifierSettings)
    flags.DEFINE_string("bank", None, "Folder of the bank; created if it does not exist.")
    flags.DEFINE_string("base_dir", None, "Folder or name of the base, as --bert_dir of run_classifier.py.")
    flags.DEFINE_string("tasks", None, "Text file with one line of flags per task.")
    flags.mark_flags_as_required(["bank", "tasks", "output_dir"])
    app.run(main)
