"""Building blocks of `modeling.py` (adapter config, tuning modes, fused ops), and heads and specs on top of it."""
