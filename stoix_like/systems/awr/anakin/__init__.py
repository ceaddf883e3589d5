"""Advantage-weighted regression with environments on the accelerator."""
