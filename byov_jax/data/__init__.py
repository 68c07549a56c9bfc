"""Read data sets and turn them into batches: sources, decoding, crops, order. No model code."""
