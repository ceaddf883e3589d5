"""Using what a run has trained: loading, policies, evaluation, rendering and export."""
