"""The tasks this project knows, by name. Importing this package registers them."""

from tasks.registry import get, names, register  # noqa: F401
from tasks.splits import StreamedSplit, fingerprint  # noqa: F401
from tasks.table import InputExample, Split, Task, read_examples  # noqa: F401

from tasks import glue, xnli  # noqa: F401  isort: skip  (they register themselves)
