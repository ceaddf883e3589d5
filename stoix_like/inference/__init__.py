"""Inference with trained agents: loading, policies, evaluation, rendering and export."""
