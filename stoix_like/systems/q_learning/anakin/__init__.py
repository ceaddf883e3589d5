"""Q-learning systems with environments on the accelerator."""
