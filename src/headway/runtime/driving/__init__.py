"""The shell that drives a decider: its lock, inbox, timer, event loop and end; and its callers."""
