"""Request-level batching: which items leave together, and when."""
