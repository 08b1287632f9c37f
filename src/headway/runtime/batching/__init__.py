"""Request-level batching: the decider that a shell drives, its callers, workers and losses."""
