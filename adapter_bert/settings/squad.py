"""The settings of `run_squad.py`. Imports no TensorFlow, so that flags are checked before it is loaded."""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar, Dict, Optional

from adapter_bert.common import errors
from adapter_bert.evaluation.answers import N_BEST, NULL_ODDS, PREDICTIONS, AnswerRules
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.settings.flags import POSITIVE, TRAINING, Rules, setting
from adapter_bert.settings.groups import SEQUENCE_LENGTH, Settings


def _check_windows(settings: SquadSettings) -> None:
    settings.lengths.check()


def _check_files(settings: SquadSettings) -> None:
    for name, phases in (("train_file", ("do_train",)), ("predict_file", ("do_eval", "do_predict"))):
        needing = [phase for phase in phases if getattr(settings, phase)]
        if needing and not getattr(settings, name):
            raise errors.UserError(f"No data: --{needing[0]} needs --{name}, a file in SQuAD's format.")


def _check_answers_overwrite_no_data(settings: SquadSettings) -> None:
    data = [os.path.realpath(path) for path in (settings.train_file, settings.predict_file) if path]
    for name in (PREDICTIONS, N_BEST, NULL_ODDS):
        path = os.path.join(settings.output_dir or "", name)
        if settings.answers and os.path.realpath(path) in data:
            raise errors.UserError(f"The answers would overwrite {path}: use another --output_dir.")


@dataclasses.dataclass(frozen=True)
class SquadSettings(Settings):
    """The flags that every entry point has, and those of span extraction."""

    task_name: Optional[str] = setting(
        None, "Name of the task in packs and results; SQuAD-v1.1 or SQuAD-v2.0 if not given.", TRAINING
    )
    train_file: Optional[str] = setting(
        None, "SQuAD file to train on, e.g. train-v1.1.json; of several answers the first counts.", TRAINING, "path"
    )
    predict_file: Optional[str] = setting(
        None, "SQuAD file to answer, e.g. dev-v1.1.json; scored where it has answers. A test file needs none."
    )
    do_eval: bool = setting(
        False,
        "Score --predict_file: with --do_train along the training too, and the best weights are kept. Its answers are "
        "written as by --do_predict.",
    )
    do_predict: bool = setting(
        False, "Answer --predict_file with the weights that the training ends with, or with those of --output_dir."
    )
    max_seq_length: int = setting(
        384,
        "Tokens of a sequence: question, window of the paragraph, three special tokens.",
        TRAINING,
        limits=SEQUENCE_LENGTH,
    )
    doc_stride: int = setting(
        128,
        "Tokens from the start of a window of the paragraph to the start of the next; windows overlap.",
        TRAINING,
        limits=POSITIVE,
    )
    max_query_length: int = setting(64, "Tokens of a question; longer ones are cut.", TRAINING, limits=POSITIVE)
    n_best_size: int = setting(
        20, "Starts and ends looked at in a window, and answers listed for a question.", limits=POSITIVE
    )
    max_answer_length: int = setting(30, "Tokens of an answer at most.", limits=POSITIVE)
    verbose_logging: bool = setting(False, "Name every question that is left out of training.")
    version_2_with_negative: bool = setting(False, "The files are SQuAD 2.0: questions may have no answer.", TRAINING)
    null_score_diff_threshold: float = setting(
        0.0,
        "SQuAD 2.0: predict no answer where its score is above that of the best text by more than this (logits). The "
        "value fitted on --predict_file is reported as best_f1_thresh.",
    )

    RULES: ClassVar[Rules] = (_check_windows, _check_files, _check_answers_overwrite_no_data)

    @property
    def lengths(self) -> WindowConfig:
        """How paragraphs are cut."""
        return WindowConfig(self.max_seq_length, self.doc_stride, self.max_query_length)

    @property
    def rules(self) -> AnswerRules:
        """What counts as an answer."""
        return AnswerRules(
            self.n_best_size, self.max_answer_length, self.version_2_with_negative, self.null_score_diff_threshold
        )

    @property
    def answers(self) -> bool:
        """Whether questions are to be answered."""
        return self.do_eval or self.do_predict

    def needed_paths(self) -> Dict[str, str]:
        """Flag -> what must be there under its path."""
        needed = super().needed_paths()
        if self.do_train:
            needed["train_file"] = "file"
        if self.answers:
            needed["predict_file"] = "file"
        return needed
