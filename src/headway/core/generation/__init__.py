"""Token-level batching: who computes which tokens in the next step, in which blocks."""
