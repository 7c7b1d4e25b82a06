"""What every entry point shares: TensorFlow versions, estimator, settings, checkpoints, hooks, scoring."""

import os

# Before TensorFlow is imported: oneDNN's products are a tenth quicker on small batches, and TensorFlow leaves them out
# on processors without AVX-512. Whoever has set it otherwise keeps that.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# A session that asks for its own number of threads, as that of a predictor does, gets them, and decides nothing for
# the others of its process: a training beside it has all cores.
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
