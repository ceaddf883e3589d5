"""Maximum a posteriori policy optimisation with environments on the accelerator."""
