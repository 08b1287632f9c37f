"""Hosted models: loaded, warmed up, listed and reloaded. Knows no protocol."""
