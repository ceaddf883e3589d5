"""Drawings of environments; nothing here imports matplotlib before something is drawn."""
