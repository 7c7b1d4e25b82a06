"""Settings of `scripts/extract_features.py`. Imports no TensorFlow, see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple

from adapter_bert.common import errors, paths
from adapter_bert.settings.flags import POSITIVE, setting
from adapter_bert.settings.groups import SEQUENCE_LENGTH, BertSettings


@dataclasses.dataclass(frozen=True)
class ExtractSettings(BertSettings):
    """Settings for the extraction of vectors, with the flags of the original."""

    input_file: Optional[str] = setting(None, "Text file, one example per line; a pair of texts as `one ||| other`.")
    output_file: Optional[str] = setting(None, "File to write: a JSON object per line of --input_file.")
    layers: str = setting("-1,-2,-3,-4", "Encoder layers: 0 is the lowest, -1 the highest.")
    max_seq_length: int = setting(
        128, "Maximum tokens in a sequence, with special tokens; longer ones are cut.", None, SEQUENCE_LENGTH
    )
    batch_size: int = setting(32, "Examples per batch; vectors do not depend on it.", None, POSITIVE)
    adapter_pack: Optional[str] = setting(
        None, "Trained task whose vectors to extract: a pack, or the output folder of a run. Default: plain BERT."
    )
    overwrite: bool = setting(False, "Replace an existing --output_file.")
    use_one_hot_embeddings: bool = setting(False, "Look up word embeddings with a matrix product.")
    use_tpu: bool = setting(False, "Not supported; must be false.")
    master: Optional[str] = setting(None, "Not used.")
    num_tpu_cores: int = setting(8, "Not used.")

    def validate(self) -> None:
        """Raise `errors.UserError` for invalid values or combinations."""
        super().validate()
        self.layer_indices()
        if self.use_tpu:
            raise errors.UserError("--use_tpu=true is not supported here: vectors are computed on a CPU or GPU.")
        named = [paths.real(path) for path in (self.input_file, self.output_file) if path]
        if len(named) > len(set(named)):
            raise errors.UserError(f"--output_file={self.output_file} is the --input_file: use another name.")

    def layer_indices(self, num_layers: Optional[int] = None) -> Tuple[int, ...]:
        """Return the layers as numbers; check that a model with this many has them."""
        try:
            layers = tuple(int(part) for part in self.layers.split(","))
        except ValueError:
            raise errors.UserError(f"--layers must be numbers such as -1,-2, found '{self.layers}'.") from None
        wrong = [layer for layer in layers if num_layers and not -num_layers <= layer < num_layers]
        if wrong:
            raise errors.UserError(
                f"--layers={self.layers}: the model has {num_layers} layers, from 0 to {num_layers and num_layers - 1} "
                f"or -1 to -{num_layers}; there is no {wrong[0]}."
            )
        return layers

    def check_paths(self) -> None:
        """As in the base class. There must be weights."""
        super().check_paths()
        if not (self.init_checkpoint or self.bert_hub_module_handle):
            raise errors.UserError("No weights: set --bert_dir, or --init_checkpoint, to those of a BERT.")

    def needed_paths(self) -> Dict[str, str]:
        """As in the base class."""
        files = dict.fromkeys(["bert_config_file", "vocab_file", "spm_model_file", "input_file"], "file")
        return self.without_downloads(dict(files, init_checkpoint="checkpoint", adapter_pack="file or folder"))
