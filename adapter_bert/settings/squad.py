"""Settings of `run_squad.py`. Imports no TensorFlow, see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional

from adapter_bert.common import errors
from adapter_bert.evaluation.answers import AnswerRules
from adapter_bert.pipeline.windows import WindowConfig
from adapter_bert.settings.flags import POSITIVE, TRAINING, setting
from adapter_bert.settings.groups import SEQUENCE_LENGTH, Settings


@dataclasses.dataclass(frozen=True)
class SquadSettings(Settings):
    """Settings for span extraction."""

    task_name: Optional[str] = setting(
        None, "Name of the task in packs and results. Default: SQuAD-v1.1 or SQuAD-v2.0.", TRAINING
    )
    train_file: Optional[str] = setting(
        None, "SQuAD file to train on, e.g. train-v1.1.json; only the first answer is used.", TRAINING, kind="path"
    )
    predict_file: Optional[str] = setting(
        None, "SQuAD file to answer, e.g. dev-v1.1.json; needs no answers to predict."
    )
    do_eval: bool = setting(
        False,
        "Answer --predict_file and score the answers; with --do_train also during training, for the best weights.",
    )
    do_predict: bool = setting(False, "Answer --predict_file with the trained weights, or those in --output_dir.")
    max_seq_length: int = setting(
        384, "Maximum tokens in a sequence: question, window and special tokens.", TRAINING, SEQUENCE_LENGTH
    )
    doc_stride: int = setting(
        128, "Tokens from the start of one window to the start of the next; windows overlap.", TRAINING, POSITIVE
    )
    max_query_length: int = setting(64, "Maximum tokens in a question; longer ones are cut.", TRAINING, POSITIVE)
    n_best_size: int = setting(20, "Start and end positions per window, and answers per question.", None, POSITIVE)
    max_answer_length: int = setting(30, "Maximum tokens in an answer.", None, POSITIVE)
    verbose_logging: bool = setting(False, "Log every question that is dropped from the training set.")
    version_2_with_negative: bool = setting(False, "The files are SQuAD 2.0: questions may have no answer.", TRAINING)
    null_score_diff_threshold: float = setting(
        0.0,
        "SQuAD 2.0: predict no answer if its score exceeds that of the best text by more than this (logits). The best "
        "value for --predict_file is reported as best_f1_thresh.",
    )

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        self.lengths.check()
        needed = {"do_train": "train_file", "do_eval": "predict_file", "do_predict": "predict_file"}
        for phase, name in needed.items():
            if getattr(self, phase) and not getattr(self, name):
                raise errors.UserError(f"No data: --{phase} needs --{name}, a file in SQuAD's format.")

    @property
    def lengths(self) -> WindowConfig:
        """How paragraphs are split into windows."""
        return WindowConfig(self.max_seq_length, self.doc_stride, self.max_query_length)

    @property
    def rules(self) -> AnswerRules:
        """Which spans are valid answers."""
        return AnswerRules(
            self.n_best_size, self.max_answer_length, self.version_2_with_negative, self.null_score_diff_threshold
        )

    @property
    def answers(self) -> bool:
        """Whether to answer the questions of `predict_file`."""
        return self.do_eval or self.do_predict

    def needed_paths(self) -> Dict[str, str]:
        """As in the base class: only files that the requested phases read."""
        files = {"train_file": self.do_train, "predict_file": self.answers}
        return dict(super().needed_paths(), **{name: "file" for name, is_read in files.items() if is_read})
