"""What models of texts have in common: tokens, networks, pooling, folders, proofs."""
