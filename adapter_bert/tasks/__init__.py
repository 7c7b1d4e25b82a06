"""Tasks and their data. Importing this package registers GLUE, XNLI and the paper's additional tasks."""

from adapter_bert.tasks.task import InputExample, Split, Task, get, is_known, names, read_examples, register  # noqa: F401
from adapter_bert.tasks.task_data import StreamedSplit, fingerprint  # noqa: F401

from adapter_bert.tasks import glue, xnli, additional  # noqa: F401  isort: skip  (they register their tasks)
