"""A batch on its way through a worker: run, rerun, cancelled, watched."""
