"""Where models come from: packages, folders, the Hugging Face hub, the cache."""
