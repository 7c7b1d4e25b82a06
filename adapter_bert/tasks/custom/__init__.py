"""Custom data: CSV, TSV and JSON files, folders and archives."""

from adapter_bert.tasks.custom.dataset import CustomData, read  # noqa: F401
from adapter_bert.tasks.custom.labels import class_weights, parse_list, parse_map  # noqa: F401
