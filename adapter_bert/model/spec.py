"""The specification of a model, which determines its graph and variables."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Tuple

import adapter_layers
import modeling
import optimization
from adapter_bert.common.cached_property import cached_property
from adapter_bert.model import parameters, precision, tuning_modes
from adapter_bert.model.heads import Head


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A BERT with adapters and a head, and the selection of its trainable variables."""

    config: modeling.BertConfig
    head: Head
    adapter: adapter_layers.AdapterFn = None  # see `adapter_layers.get_adapter`
    tuning_mode: str = "adapter"  # see `optimization.trainable_names`
    top_layers: Optional[int] = None  # number of layers to train in mode `top_layers`
    use_one_hot_embeddings: bool = False  # look up words with a matrix product
    precision: str = precision.FLOAT32  # see `model.precision`
    cached_layers: int = 0  # lowest layers, all frozen, that run without dropout, so that their output can be cached

    @cached_property
    def shapes(self) -> parameters.Shapes:
        """Name -> shape of every variable, in the order of the graph."""
        return parameters.model_shapes(self.config, self.head, self.adapter)

    @cached_property
    def trained_names(self) -> List[str]:
        """Names of the trainable variables."""
        return optimization.trainable_names(list(self.shapes), self.tuning_mode, self.top_layers, self.frozen_norms)

    @property
    def frozen_norms(self) -> int:
        """Number of lowest layers whose LayerNorms mode `adapter` leaves frozen."""
        return self.adapter.frozen_layers if isinstance(self.adapter, adapter_layers.AdapterConfig) else 0

    @cached_property
    def frozen_layers(self) -> int:
        """Number of lowest encoder layers with nothing to train in them or below."""
        return min(tuning_modes.depth_of(name, self.config.num_hidden_layers) for name in self.trained_names)

    @cached_property
    def frozen_names(self) -> List[str]:
        """Names of the frozen variables."""
        trained = set(self.trained_names)
        return [name for name in self.shapes if name not in trained]

    @property
    def trained_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """Name -> shape of the trainable variables."""
        return {name: self.shapes[name] for name in self.trained_names}

    def parameter_counts(self) -> Dict[str, int]:
        """Return the number of parameters, `total` and `trained`."""
        return {
            "total": parameters.count(self.shapes),
            "trained": parameters.count(self.shapes, self.trained_names),
        }

    def reduced_names(self, trains: bool) -> List[str]:
        """Names of the variables to store in `precision`, in training or otherwise; none if it is float32."""
        if self.precision == precision.FLOAT32:  # a model with a custom adapter may not know its trained names
            return []
        return precision.stored_names(list(self.shapes), set(self.frozen_names), trains)

    @property
    def base_names(self) -> List[str]:
        """Names of the variables of BERT itself: neither adapters nor head."""
        return [name for name in self.shapes if parameters.group_of(name) not in ("adapters", "head")]
