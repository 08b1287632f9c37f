"""The only place that calls user code."""
