"""Weights in the formats of other libraries: Hugging Face, AdapterHub, Google's checkpoints."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

from adapter_bert.common import errors
from adapter_bert.weights import bases, packs
from adapter_layers import AdapterConfig


class ImportedTask(NamedTuple):
    """Information about a task that files of other libraries do not record."""

    name: str
    labels: Optional[Sequence[str]]  # in the order of the head; empty for regression and spans; None: those of the head
    max_seq_length: int
    created: str  # date of the pack
    do_lower_case: bool = True

    def choose_labels(self, head: str, theirs: Sequence[str]) -> List[str]:
        """Return the labels given by the user, or else those of the head; raise a `UserError` if they do not match.

        `head` is the kind and place of the head, for messages; `theirs` are its classes in the order of the units.
        """
        labels = list(theirs if self.labels is None else self.labels)
        if len(labels) != len(theirs):
            raise errors.UserError(
                f"The {head} has {len(theirs)} classes ({errors.first_names(theirs)}); {len(labels)} labels were "
                f"given: {errors.first_names(labels)}."
            )
        if any(label in theirs and theirs[number] != label for number, label in enumerate(labels)):
            raise errors.UserError(
                f"The {head} has its classes in the order {', '.join(theirs)}, not {', '.join(labels)}. Give the "
                "labels in the order of the head."
            )
        return labels

    def pack_config(self, base: bases.Base, adapter: Optional[AdapterConfig], **fields: Any) -> packs.PackConfig:
        """Return the configuration of a pack, without the fingerprint of its base; `fields` are all others."""
        return packs.PackConfig(
            task=self.name,
            architecture=base.config.to_dict(),
            tuning_mode="adapter" if adapter else "full",
            adapter=packs.describe_adapter(adapter),
            tokenizer=dict(base.tokenizer_description, do_lower_case=self.do_lower_case),
            max_seq_length=self.max_seq_length,
            base=None,
            created=self.created,
            **fields,
        )
