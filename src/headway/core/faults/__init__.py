"""Decisions after a batch fails, a worker dies, or memory runs out."""
