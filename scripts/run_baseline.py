r"""Train, evaluate and apply a network on text embeddings, without BERT.

    python scripts/run_baseline.py --task_name=sms_spam_collection --data_dir=data --preset=sms_spam_collection \
      --do_train=true --do_eval=true --do_predict=true --output_dir=runs/sms_baseline

docs/baselines.md describes networks, modules, presets and the search for the best network.
"""

from __future__ import annotations

from typing import Sequence

from absl import app, flags

from adapter_bert.baselines import settings as baseline_settings
from adapter_bert.baselines.settings import BaselineSettings
from adapter_bert.common import errors, system
from adapter_bert.settings import flags as settings_lib

system.configure_tensorflow()

from adapter_bert.baselines import training
from adapter_bert.common import logs

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Create settings from the flags and run the task."""
    settings_lib.reject_positional_args(argv)
    logs.show_progress(settings_lib.verbosity(FLAGS))
    given = {name: True for name in BaselineSettings.__dataclass_fields__ if FLAGS[name].present}
    settings = baseline_settings.with_preset(settings_lib.from_flags(BaselineSettings, FLAGS), given)
    settings.validate()
    settings.check_paths()
    training.run(settings)


if __name__ == "__main__":
    settings_lib.define_flags(BaselineSettings)
    flags.mark_flags_as_required(["task_name", "output_dir"])
    app.run(main)
