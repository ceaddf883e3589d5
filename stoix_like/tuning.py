"""Sweeps, under the path that scripts import; see `lab.tuning`."""

from stoix_like.lab.tuning import SweepConfig as SweepConfig
