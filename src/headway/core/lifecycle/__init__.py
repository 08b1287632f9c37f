"""Operating decisions: which versions are loaded, and where a model runs."""
