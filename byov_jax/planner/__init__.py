"""What a training step will need on a machine that is not there: memory, work, traffic and time."""
