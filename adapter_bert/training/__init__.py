"""Training, evaluation and prediction of one run."""
