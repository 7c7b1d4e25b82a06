"""Checkpoints, packs, banks, bases and run folders."""
