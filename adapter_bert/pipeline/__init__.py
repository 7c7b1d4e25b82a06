"""The input pipeline: examples -> features -> TFRecords -> batches."""
