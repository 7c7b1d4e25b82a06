"""Examples -> features -> TFRecords -> batches."""
