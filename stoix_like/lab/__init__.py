"""Work with runs: statistics, plots, sweeps, tuning, compilation for other devices. The core imports none of it."""
