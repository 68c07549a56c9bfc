"""Where images come from: source -> host batch. NumPy and Pillow, no model code."""
