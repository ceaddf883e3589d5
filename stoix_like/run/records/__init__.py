"""The metrics of a run, from the device to loggers and videos."""
