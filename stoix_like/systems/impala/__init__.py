"""IMPALA."""
