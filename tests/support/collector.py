"""Loggers outside of the package."""

import pathlib

from stoix_like.loggers import Logger


class Collector:
    """A logger that keeps evaluations, records between them, and the order of both."""

    name = "collector"

    def __init__(self):
        self.evaluations, self.updates, self.order = [], [], []

    def start(self, info): ...
    def finish(self, summary): ...
    def close(self): ...

    def log(self, record):
        self.evaluations.append(record)
        self.order.append(("evaluation", record["updates"]))

    def log_updates(self, record):
        self.updates.append(record)
        self.order.append(("updates", record["updates"]))


class Lines(Logger):
    """A logger that writes the environment steps of each record, empties the record, and may fail at some step."""

    def __init__(self, path, fails_at=-1):
        self.path, self.fails_at = pathlib.Path(path), fails_at

    def log(self, record):
        if record["env_steps"] == self.fails_at:
            raise OSError("no space left")
        with self.path.open("a") as file:
            file.write(f"{record['env_steps']}\n")
        record.clear()
