"""Settings of the device, its precision and distributed training. Imports no TensorFlow, see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Optional

from adapter_bert.common import errors
from adapter_bert.devices.cluster import MIRRORED, STRATEGIES
from adapter_bert.devices.device import Device
from adapter_bert.model import precision
from adapter_bert.settings.flags import POSITIVE, TRAINING, FlagGroup, Limits, setting


@dataclasses.dataclass(frozen=True)
class DeviceSettings(FlagGroup):
    """CPU, GPU or TPU, the precision in which it computes, and the processes that train together."""

    precision: str = setting(
        precision.FLOAT32,
        "Precision of matrix products and frozen weights: float32; bfloat16, which is up to twice as fast on CPUs with "
        "avx512_bf16 or amx_bf16; or, on GPUs, float16. Trained weights and the optimizer are always float32.",
        TRAINING,
        Limits(choices=precision.NAMES),
    )
    use_tpu: bool = setting(False, "Run on a TPU (TensorFlow 2.15 or older) instead of a CPU or GPU.")
    tpu_name: Optional[str] = setting(
        None, "Name or grpc:// address of the Cloud TPU, or local on a TPU VM; needed with --use_tpu."
    )
    tpu_zone: Optional[str] = setting(None, "Zone of the Cloud TPU; detected if not set.")
    gcp_project: Optional[str] = setting(None, "Project of the Cloud TPU; detected if not set.")
    master: Optional[str] = setting(None, "Address of the TensorFlow master.")
    num_tpu_cores: int = setting(8, "TPU cores in total; used with --use_tpu only.", None, POSITIVE)
    iterations_per_loop: int = setting(1000, "Training steps per call of the TPU.", None, POSITIVE)
    distribution_strategy: Optional[str] = setting(
        None,
        "Train with several processes, which compute equal shares of each batch: mirrored (one process for each GPU "
        "of this machine, or --workers), or multi_worker_mirrored (this process is a worker of the cluster that "
        "TF_CONFIG or SLURM describes). Default: one process.",
        None,
        Limits(choices=STRATEGIES),
    )
    workers: Optional[int] = setting(
        None,
        "Processes to start on this machine with --distribution_strategy=mirrored. Default: one per GPU.",
        None,
        POSITIVE,
    )
    worker_timeout: int = setting(
        600,
        "Seconds in which all workers must finish a training step; a process that ends is noticed at once.",
        None,
        POSITIVE,
    )

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        self._check_strategy()
        if self.use_tpu and bool(self.tpu_name) == bool(self.master):
            raise errors.UserError(
                "--use_tpu=true needs either --tpu_name (the TPU's name or grpc:// address) or --master; found "
                f"--tpu_name={self.tpu_name} and --master={self.master}."
            )

    def _check_strategy(self) -> None:
        if self.workers and self.distribution_strategy != MIRRORED:
            raise errors.UserError(f"--workers={self.workers} needs --distribution_strategy={MIRRORED}.")
        for name in ("use_tpu", "master"):
            if self.distribution_strategy and getattr(self, name):
                raise errors.UserError(
                    f"--distribution_strategy={self.distribution_strategy} is for CPUs and GPUs, and cannot be "
                    f"combined with --{name}={getattr(self, name)}."
                )

    @property
    def device(self) -> Device:
        """The device to run on."""
        return Device(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Device)})
