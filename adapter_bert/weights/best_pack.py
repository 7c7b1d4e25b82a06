"""The pack that a run keeps in its output folder: its best weights, or its last ones if none were scored."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.devices import compat
from adapter_bert.evaluation.scores import Scores
from adapter_bert.settings.groups import Settings
from adapter_bert.weights import checkpoints, packs
from adapter_bert.weights.record import RunRecord


@dataclasses.dataclass(frozen=True)
class BestPack:
    """Turns checkpoints of a run into its pack.

    Attributes:
      settings: of the run.
      record: what is known about the run besides.
      config: BERT's architecture.
      head_kind: see `heads.TYPES`.
      tokenizer: see `bases.describe_tokenizer`.
      trained: the variables that train.
    """

    settings: Settings
    record: RunRecord
    config: modeling.BertConfig
    head_kind: str
    tokenizer: Mapping[str, Any]
    trained: Sequence[str]

    @property
    def path(self) -> str:
        """Where the pack is."""
        return os.path.join(self.settings.output_dir, packs.FILE_NAME)

    def kept(self) -> Optional[packs.PackConfig]:
        """What the pack says of itself; None where there is none yet."""
        return packs.read_config(self.path) if tf.gfile.Exists(self.path) else None

    def keep(self, checkpoint: str, scores: Optional[Scores] = None) -> None:
        """Makes a checkpoint's weights the pack."""
        pack = packs.Pack(self._describe(checkpoint), checkpoints.read_tensors(checkpoint, self.trained))
        packs.write(self.path, packs.with_scores(pack, scores) if scores else pack)

    def _describe(self, checkpoint: str) -> packs.PackConfig:
        settings, facts = self.settings, self.record.facts
        return packs.PackConfig(
            task=settings.task_name,
            architecture=self.config.to_dict(),
            tuning_mode=settings.tuning_mode,
            head=self.head_kind,
            labels=list(facts.get("labels", ())),
            tokenizer=self.tokenizer,
            max_seq_length=settings.max_seq_length,
            base=facts.get("frozen"),
            created=packs.now(),
            adapter=packs.describe_adapter(settings.adapter),
            tune_top_layers=settings.tune_top_layers,
            seed=self.record.seed,
            step=checkpoints.read_step(checkpoint),
            training=settings.training_values(),
            versions=compat.versions(),
        )

    def complete(self) -> None:
        """At the end of a training whose pack was not chosen by scores: the newest weights."""
        latest = checkpoints.find_latest(self.settings.output_dir)
        kept = self.kept()
        if kept is None or (not kept.metrics and kept.step != checkpoints.read_step(latest)):
            self.keep(latest)

    def note_scores(self, scores: Scores) -> None:
        """Adds scores of the pack's weights to a pack that has none."""
        kept = self.kept()
        if kept and not kept.metrics:
            packs.write(self.path, packs.with_scores(packs.read(self.path), scores))
