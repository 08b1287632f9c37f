"""Which work is admitted, which waits, and which is next: for every kind of queued work."""
