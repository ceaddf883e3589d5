"""Q-learning systems for discrete actions."""
