"""Sequential Monte Carlo policy optimisation."""
