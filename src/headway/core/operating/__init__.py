"""What an operator would decide: which versions are loaded, and where a model runs."""
