"""Advantage-weighted regression."""
