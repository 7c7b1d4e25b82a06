"""Helpers that know nothing about BERT: errors, files, processes, progress, logging and signals."""
