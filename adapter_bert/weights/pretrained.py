"""Load the architecture and tokenizer of the pre-trained BERT, and check that they match."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

import modeling
import tokenization
from adapter_bert.common import errors
from adapter_bert.settings.groups import Settings
from adapter_bert.weights import bases


@dataclasses.dataclass(frozen=True)
class PretrainedBert:
    """A BERT without its weights, which `weights.loading` handles.

    Attributes:
      config: its architecture.
      tokenizer: its tokenizer.
      tokenizer_description: see `bases.describe_tokenizer`.
    """

    config: modeling.BertConfig
    tokenizer: Any
    tokenizer_description: Mapping[str, Any]

    @classmethod
    def load(cls, settings: Settings) -> PretrainedBert:
        """Read config and vocabulary.

        Raises:
          errors.UserError: they do not exist or do not match, or sequences are too long for this BERT.
        """
        config = modeling.BertConfig.from_json_file(settings.bert_config_file or "")
        tokenizer = tokenization.create_tokenizer(settings.vocab_file, settings.spm_model_file, settings.do_lower_case)
        if len(tokenizer.vocab) != config.vocab_size:
            raise errors.UserError(
                f"The vocabulary {settings.vocab_file or settings.spm_model_file} has {len(tokenizer.vocab)} entries, "
                f"but {settings.bert_config_file} has vocab_size {config.vocab_size}: they belong to different models. "
                "(If the embedding table was padded on purpose, append lines [unused…] to the vocabulary.)"
            )
        if settings.vocab_file:
            tokenization.check_case_matches_vocabulary(settings.do_lower_case, tokenizer.vocab)
        modeling.check_sequence_length(settings.max_seq_length, config)
        return cls(config, tokenizer, bases.describe_tokenizer(tokenizer))
