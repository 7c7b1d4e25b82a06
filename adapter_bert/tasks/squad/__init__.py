"""SQuAD 1.1 and 2.0: data classes, and the reader of the JSON files."""

from adapter_bert.tasks.squad.dataset import (  # noqa: F401
    Dataset,
    GoldAnswer,
    Paragraph,
    Question,
    check_version,
    describe,
    fingerprint,
    for_training,
)
from adapter_bert.tasks.squad.reader import load, parse, read  # noqa: F401
