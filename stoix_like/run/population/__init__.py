"""Members of a population, and what changes them between intervals of training."""
