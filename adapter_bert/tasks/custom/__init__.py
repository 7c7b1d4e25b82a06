"""Custom data: CSV, TSV and JSONL files, folders and archives."""

from adapter_bert.tasks.custom.dataset import CustomData, read  # noqa: F401
from adapter_bert.tasks.custom.labels import balanced_class_weights, class_weights, parse_list, parse_map  # noqa: F401
