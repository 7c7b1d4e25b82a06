"""The pack in a run's output folder: its best weights, or its last ones if none were scored."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from adapter_bert.devices import compat
from adapter_bert.evaluation.scores import Scores
from adapter_bert.weights import checkpoints, packs
from adapter_bert.weights.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class BestPack:
    """Saves checkpoints of a run as its pack.

    Attributes:
      folder: output folder of the run.
      config: description of the pack, apart from its step, date and software versions.
      trained_names: names of the trainable variables.
    """

    folder: RunFolder
    config: packs.PackConfig
    trained_names: Sequence[str]

    def saved(self) -> Optional[packs.PackConfig]:
        """Return the description of the saved pack, or None."""
        return packs.read_config(self.folder.pack_path) if self.folder.has_pack() else None

    def save(self, checkpoint: str, scores: Optional[Scores] = None) -> None:
        """Save a checkpoint's weights as the pack."""
        config = dataclasses.replace(
            self.config, step=checkpoints.read_step(checkpoint), created=packs.now(), versions=compat.versions()
        )
        pack = packs.Pack(config, checkpoints.read_tensors(checkpoint, self.trained_names))
        packs.write(self.folder.pack_path, packs.with_scores(pack, scores) if scores else pack)

    def save_last(self) -> None:
        """Save the newest weights at the end of training, unless the pack was selected by its score."""
        latest, saved = self.folder.latest_checkpoint(), self.saved()
        if latest and (saved is None or (not saved.metrics and saved.step != checkpoints.read_step(latest))):
            self.save(latest)

    def add_scores(self, scores: Scores) -> None:
        """Add scores to a pack that has none."""
        saved = self.saved()
        if saved and not saved.metrics:
            pack = packs.read(self.folder.pack_path)
            packs.write(self.folder.pack_path, packs.with_scores(pack, scores))
