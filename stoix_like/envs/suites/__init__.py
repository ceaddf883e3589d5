"""Adapters for suites of environments, registered in `envs.factory`."""
