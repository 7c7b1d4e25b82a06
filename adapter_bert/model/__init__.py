"""What `modeling.py` is built from (adapter config, tuning modes, fused ops) and what builds on it (heads)."""
