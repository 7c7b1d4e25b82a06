"""What every entry point shares: TensorFlow versions, estimator, settings, checkpoints, hooks, scoring."""
