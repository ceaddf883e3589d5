"""Networks from their configuration."""
