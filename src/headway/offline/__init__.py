"""A file of lines through a model, offline: what `headway map` does."""
