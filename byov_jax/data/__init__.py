"""Where images come from: source -> host batch. NumPy only, no model code."""
