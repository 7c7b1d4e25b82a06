"""How paragraphs are cut into windows, in tokens. Imports no TensorFlow: it is part of the settings of a run."""

from __future__ import annotations

import dataclasses

from adapter_bert.common import errors


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """How paragraphs are cut, in tokens.

    Attributes:
      max_seq_length: of a sequence: `[CLS] question [SEP] window [SEP]`.
      doc_stride: from the start of a window to that of the next.
      max_query_length: of a question; the rest of a longer one is left out.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def check(self) -> None:
        """Raises `errors.UserError` where tokens of a paragraph would fall between two windows."""
        room = self.context_length(self.max_query_length)
        lengths = f"--max_seq_length={self.max_seq_length} and --max_query_length={self.max_query_length}"
        if room < 1:
            raise errors.UserError(
                f"{lengths} leave no room for the paragraph: with the three special tokens, --max_seq_length must be "
                f"at least {self.max_query_length + 4}."
            )
        if self.doc_stride >= room:
            raise errors.UserError(
                f"--doc_stride={self.doc_stride} is too far: {lengths} leave {room} tokens of a window for the "
                f"paragraph, and windows must overlap. Take a --doc_stride below {room}, or a longer --max_seq_length."
            )

    def context_length(self, query_length: int) -> int:
        """Tokens of the paragraph beside a question of so many tokens."""
        return self.max_seq_length - query_length - 3
