"""Pictures of episodes; drawing needs matplotlib."""
