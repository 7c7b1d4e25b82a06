"""Flags and the frozen settings made from them. Imports no TensorFlow."""
