"""Memory, FLOPs, traffic and time of a training step, from its compiled program, without the hardware."""
