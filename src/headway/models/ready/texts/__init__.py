"""The common part of text models: tokens, networks, pooling, folders, proofs."""
