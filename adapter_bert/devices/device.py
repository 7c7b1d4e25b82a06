"""The device that a model runs on, and its constraints. Imports no TensorFlow, because settings use it."""

from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class Device:
    """A CPU, GPU or TPU. Each attribute is the flag of the same name.

    A TPU compiles the whole training step, which requires static shapes and does not support session hooks.
    """

    use_tpu: bool = False
    tpu_name: Optional[str] = None
    tpu_zone: Optional[str] = None
    gcp_project: Optional[str] = None
    master: Optional[str] = None
    num_tpu_cores: int = 8
    iterations_per_loop: int = 1000

    @property
    def needs_static_shapes(self) -> bool:
        """Whether all sequences must have one length, and all batches one size."""
        return self.use_tpu

    @property
    def uses_one_hot_embeddings(self) -> bool:
        """Whether embeddings are looked up by a matrix product, which is faster on a TPU."""
        return self.use_tpu

    @property
    def supports_hooks(self) -> bool:
        """Whether session hooks can save, evaluate and report progress during training."""
        return not self.use_tpu

    @property
    def splits_batches(self) -> bool:
        """Whether to compute the two halves of a batch in parallel, which is faster only on CPUs."""
        if self.use_tpu:
            return False
        from adapter_bert.devices import compat  # imported here because it imports TensorFlow

        return not compat.has_gpu()

    def padded_batch_size(self, batch_size: int) -> int:
        """Return the number that must divide the size of an evaluated data set."""
        return batch_size if self.needs_static_shapes else 1
