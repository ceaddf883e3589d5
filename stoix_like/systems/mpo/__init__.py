"""Maximum a posteriori policy optimisation."""
