"""Pure functions: losses, multistep returns, running statistics, replay."""
