"""Weights in the formats of other libraries: Hugging Face, AdapterHub, Google's checkpoints."""
