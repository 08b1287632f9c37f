"""The shell around a scheduler: its lock, its event loop, its workers, its end."""
