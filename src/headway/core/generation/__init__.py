"""Token-level batching: the tokens that the next step computes, and their blocks."""
