"""Token-level engine: tensors, kernels, caches. It obeys `core/generation`, and imports torch late."""
