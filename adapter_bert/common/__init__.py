"""Helpers that are independent of BERT: errors, files, processes, progress, logging and signals."""
