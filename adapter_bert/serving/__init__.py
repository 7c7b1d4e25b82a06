"""Trained tasks put to use: a model that is loaded once and answers many calls."""
