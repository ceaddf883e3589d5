"""Everything that is the same for every system: rollouts, devices, evaluation, the run itself."""
