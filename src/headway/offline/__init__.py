"""A file of lines through a model, with nobody waiting: what `headway map` does."""
