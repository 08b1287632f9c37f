"""Language models that are served: their text side, and the sequences they have under way."""
