"""What every entry point shares: estimator, hooks, checkpoints, adapter packs, conversion."""
