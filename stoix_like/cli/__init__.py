"""The command line, `stoix-like train|resume|evaluate|…`, and the entry point shared by system files."""

from stoix_like.cli.main import main
from stoix_like.cli.train import launch

__all__ = ["launch", "main"]
