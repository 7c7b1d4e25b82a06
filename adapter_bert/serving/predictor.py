"""Predict with a trained task that stays loaded between calls.

    with Predictor.from_run("runs/sst2") as predictor:
        predictor.predict(["a fine film", "dull"])   # [Prediction(label='1', probabilities={'0': …, '1': …}), …]

For full speed, call `adapter_bert.common.system.configure_tensorflow()` before TensorFlow is imported. Training uses
`estimator.predict` instead, which builds a new graph for every call: fine for a file, too slow for one sentence.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

import modeling
import tokenization
from adapter_bert.common import errors, files
from adapter_bert.devices import precision as device_precision
from adapter_bert.devices.device import Device
from adapter_bert.evaluation.answers import AnswerRules, PredictedAnswer
from adapter_bert.model.precision import FLOAT32
from adapter_bert.pipeline.features import Encoder
from adapter_bert.serving import stacking
from adapter_bert.serving.engine import Engine, Prediction, Text, as_pairs, as_questions
from adapter_bert.weights import bases, checkpoints, loading, packs
from adapter_bert.weights.bank import Bank
from adapter_bert.weights.exchange import known_bases
from adapter_bert.weights.loading import WeightRequest
from adapter_bert.weights.run_folder import SETTINGS_FILE, RunFolder

Path = Union[str, "os.PathLike[str]"]


class TrainedTask(NamedTuple):
    """A pack and the weights of its base, checked, but not in a graph yet."""

    weights: loading.Weights
    config: packs.PackConfig
    tokenizer: bases.Tokenizer
    tokenizer_file: str
    max_seq_length: int

    @classmethod
    def read(
        cls,
        init_checkpoint: str,
        adapter_pack: str,
        vocab_file: Optional[str] = None,
        spm_model_file: Optional[str] = None,
        bert_config_file: Optional[str] = None,
        max_seq_length: Optional[int] = None,
    ) -> TrainedTask:
        """Read and check all files; the arguments are those of `Predictor`."""
        with files.user_errors():
            path = packs.find(adapter_pack)
            weights, config = _resolve_weights(init_checkpoint, path, bert_config_file)
            length = config.max_seq_length if max_seq_length is None else max_seq_length
            errors.check_int("max_seq_length", length, 3)
            modeling.check_sequence_length(length, config.bert_config.max_position_embeddings)
            if not vocab_file and not spm_model_file:
                is_wordpiece = config.tokenizer["type"] == "wordpiece"
                found = _find_tokenizer_file(weights.files[0].path, bases.VOCAB_NAME if is_wordpiece else "*.model")
                vocab_file, spm_model_file = (found, None) if is_wordpiece else (None, found)
            tokenizer = tokenization.create_tokenizer(vocab_file, spm_model_file, config.tokenizer["do_lower_case"])
        described = bases.describe_tokenizer(tokenizer)
        if described != config.tokenizer:
            raise errors.UserError(
                f"The pack {path} was trained with another tokenizer: expected {config.tokenizer}, but "
                f"{vocab_file or spm_model_file} is {described}."
            )
        return cls(weights, config, tokenizer, vocab_file or spm_model_file or "", length)


class Predictor:
    """A base with a pack, for classification, regression and question answering.

    Several threads may use it at the same time. `close`, or the end of a `with` block, frees the memory.

    Attributes:
      config: the configuration of the pack: task, labels, scores and so on.
      max_seq_length: maximum number of tokens; longer texts are truncated.
    """

    def __init__(
        self,
        init_checkpoint: str,
        adapter_pack: str,
        vocab_file: Optional[str] = None,
        spm_model_file: Optional[str] = None,
        bert_config_file: Optional[str] = None,
        max_seq_length: Optional[int] = None,
        threads: int = 0,
        precision: str = FLOAT32,
    ) -> None:
        """Load and check all files, build the graph and run it once.

        Args:
          init_checkpoint: the base that the pack was trained on.
          adapter_pack: the pack, or the output folder of its run.
          vocab_file: WordPiece vocabulary. By default, the tokenizer's file is searched for beside the checkpoint.
          spm_model_file: SentencePiece model, instead of `vocab_file`.
          bert_config_file: configuration of the base, to check that it equals the pack's.
          max_seq_length: by default as in training.
          threads: number of threads for one call; 0 for one per core.
          precision: `float32`, or `bfloat16` on CPUs that support it; it need not be that of the training.

        Raises:
          errors.UserError: a file is missing or damaged, or the files do not belong together.
        """
        errors.check_int("threads", threads, 0)
        device_precision.check(precision, Device())
        trained = TrainedTask.read(
            init_checkpoint, adapter_pack, vocab_file, spm_model_file, bert_config_file, max_seq_length
        )
        self.config, self.max_seq_length = trained.config, trained.max_seq_length
        self._encoder = Encoder((), self.max_seq_length, trained.tokenizer)
        graph, tensors = stacking.build_alone(self.config, trained.weights.assignments, precision)
        self._engine = Engine(graph, threads)
        family = stacking.family_of(self.config)
        self._task = self._engine.load(self.config.task, self.config, tensors, family, self._encoder)
        self._engine.warm_up(self._task, is_mixed=False)

    @classmethod
    def from_run(cls, output_dir: str, **changes: Any) -> Predictor:
        """Load the model of a finished run from its output folder, whose `settings.json` names the base.

        `changes` are arguments of `Predictor`, e.g. `init_checkpoint` if the base was moved.
        """
        return cls(**_of_run(output_dir, changes))

    @classmethod
    def from_bank(cls, bank: str, task: str, **changes: Any) -> Predictor:
        """Load a task from a bank, by the name of its pack; `changes` are arguments of `Predictor`."""
        return cls(**_of_bank(bank, task, changes))

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def close(self) -> None:
        """Free the model. Calling this again has no effect."""
        self._engine.close()

    def predict(self, texts: Sequence[Text], batch_size: int = 32) -> List[Prediction]:
        """Return the predictions for strings or pairs of strings (tuples or lists), in the same order.

        A thread computes up to `batch_size` texts at a time, which affects results only through rounding. Raise a
        `UserError` if an item is not a text, the task answers questions, or the predictor is closed.
        """
        self._engine.check_open()
        self._task.check_predicts()
        return self._engine.predict([(self._task, pair) for pair in as_pairs(texts)], batch_size)

    def answer(
        self, questions: Sequence[Tuple[str, str]], rules: Optional[AnswerRules] = None, batch_size: int = 8
    ) -> List[PredictedAnswer]:
        """Return the answers to pairs of a question and a paragraph, for a task that answers questions.

        Long paragraphs are divided into windows as in training. By default, the rules are those of the training's
        version of SQuAD with a null threshold of 0.
        """
        self._engine.check_open()
        return self._engine.answer(self._task, as_questions(questions), rules, batch_size)


def load(
    run: Optional[Path] = None,
    adapter_pack: Optional[Path] = None,
    bank: Optional[Path] = None,
    task: Optional[str] = None,
    bert_dir: Optional[Path] = None,
    **changes: Any,
) -> Predictor:
    """Load a trained task from one of three places.

    Args:
      run: the output folder of a training run.
      adapter_pack: a pack; its base is `bert_dir` or the argument `init_checkpoint` of `Predictor`.
      bank: a bank; `task` is the name of a pack in it.
      task: see `bank`.
      bert_dir: folder of the base, e.g. if it was moved since training.
      **changes: other arguments of `Predictor`.

    Raises:
      errors.UserError: the arguments or the files do not belong together.
    """
    return Predictor(**arguments(run, adapter_pack, bank, task, bert_dir, **changes))


def arguments(
    run: Optional[Path] = None,
    adapter_pack: Optional[Path] = None,
    bank: Optional[Path] = None,
    task: Optional[str] = None,
    bert_dir: Optional[Path] = None,
    **changes: Any,
) -> Dict[str, Any]:
    """Return the arguments of `Predictor` for a trained task; see `load`."""
    given = [name for name, value in (("run", run), ("adapter_pack", adapter_pack), ("bank", bank)) if value]
    if len(given) != 1:
        raise errors.UserError(f"Expected one of run, adapter_pack and bank; found {errors.first_names(given)}.")
    if bool(bank) != bool(task):
        raise errors.UserError(f"bank and task belong together; found bank={bank} and task={task}.")
    has_base = bool(bert_dir or changes.get("init_checkpoint"))
    if bank and has_base:
        raise errors.UserError(f"The bank {bank} has its own base: omit bert_dir and init_checkpoint.")
    if adapter_pack and not has_base:
        raise errors.UserError(f"adapter_pack={adapter_pack} needs its base: give bert_dir or init_checkpoint.")
    if bert_dir:
        with files.user_errors():
            changes = {**bases.Base.find(known_bases.provide(os.fspath(bert_dir))).flags(), **changes}
    if bank:
        return _of_bank(os.fspath(bank), task or "", changes)
    if run:
        return _of_run(os.fspath(run), changes)
    return {"adapter_pack": os.fspath(adapter_pack or ""), **changes}


def _of_run(output_dir: str, changes: Dict[str, Any]) -> Dict[str, Any]:
    if "init_checkpoint" not in changes:
        with files.user_errors():
            changes = {**changes, "init_checkpoint": RunFolder(output_dir).read_settings().get("init_checkpoint")}
    if not changes["init_checkpoint"]:
        raise errors.UserError(
            f"{output_dir} has no {SETTINGS_FILE} that names the base. Expected the output folder of a run; "
            "otherwise set init_checkpoint to the base."
        )
    return {"adapter_pack": output_dir, **changes}


def _of_bank(bank: str, task: str, changes: Dict[str, Any]) -> Dict[str, Any]:
    with files.user_errors():
        opened = Bank.open(bank)
        path = opened.path(task)
    return {"adapter_pack": path, **opened.base.flags(), **changes}


def _resolve_weights(
    init_checkpoint: str, path: str, bert_config_file: Optional[str]
) -> Tuple[loading.Weights, packs.PackConfig]:
    """Return the weights, checked against their fingerprints, and the configuration of the pack."""
    config = packs.read_config(path)
    spec = config.spec
    if bert_config_file:
        spec = dataclasses.replace(spec, config=modeling.BertConfig.from_json_file(bert_config_file))
    weights = loading.resolve(spec, WeightRequest(init_checkpoint, path), loading.EVALUATE)
    assert weights is not None  # the request names the files
    return weights, config


def _find_tokenizer_file(checkpoint: str, pattern: str) -> str:
    """Return the only file in the folder of a checkpoint that matches the pattern."""
    folder = checkpoints.folder_of(checkpoint)
    names = sorted(tf.gfile.ListDirectory(folder))
    found = fnmatch.filter(names, pattern)
    if len(found) != 1:
        raise errors.UserError(
            f"Expected one {pattern} beside the base {checkpoint}; found {errors.first_names(names)}. Set "
            "vocab_file or spm_model_file."
        )
    return os.path.join(folder, found[0])
