"""Where images come from: source -> host batch. decoders and grain, no model code."""
