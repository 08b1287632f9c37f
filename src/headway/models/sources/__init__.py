"""The sources of models: packages, folders, the Hugging Face hub, the cache."""
