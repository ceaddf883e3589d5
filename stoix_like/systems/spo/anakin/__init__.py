"""Sequential Monte Carlo policy optimisation with environments on the accelerator."""
