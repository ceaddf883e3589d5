"""IMPALA with environments on the accelerator."""
