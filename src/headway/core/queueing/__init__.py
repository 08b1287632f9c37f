"""Who waits, who is next, who gets in: for every kind of queued work."""
