"""Language models on packed tokens: our own for Llama's kin, transformers' for the others."""
