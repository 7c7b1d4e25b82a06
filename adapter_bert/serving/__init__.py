"""Serving trained tasks: a model that is loaded once and answers many calls."""
