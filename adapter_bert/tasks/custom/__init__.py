"""Custom data: CSV, TSV and JSONL files, folders and archives."""
