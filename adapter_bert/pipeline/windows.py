"""Configuration of windows over paragraphs. Imports no TensorFlow: it is part of the settings."""

from __future__ import annotations

import dataclasses

from adapter_bert.common import errors


@dataclasses.dataclass(frozen=True)
class WindowConfig:
    """Lengths of windows in tokens."""

    max_seq_length: int = 384  # of a sequence `[CLS] question [SEP] window [SEP]`
    doc_stride: int = 128  # distance between the starts of consecutive windows
    max_query_length: int = 64  # longer questions are truncated

    def check(self) -> None:
        """Raise `errors.UserError` if windows would not cover a paragraph."""
        length = self.context_length(self.max_query_length)
        lengths = f"--max_seq_length={self.max_seq_length} and --max_query_length={self.max_query_length}"
        if length < 1:
            raise errors.UserError(
                f"{lengths} leave no room for the paragraph: with the three special tokens, --max_seq_length must be "
                f"at least {self.max_query_length + 4}."
            )
        if self.doc_stride >= length:
            raise errors.UserError(
                f"--doc_stride={self.doc_stride} is too large: {lengths} leave {length} tokens of a window for the "
                f"paragraph, and windows must overlap. Use a --doc_stride below {length}, or a larger --max_seq_length."
            )

    def context_length(self, query_length: int) -> int:
        """Return the number of paragraph tokens in a window with a question of this many tokens."""
        return self.max_seq_length - query_length - 3
