"""Value-based systems for discrete actions."""
