"""A model that lives somewhere: loaded, warmed up, listed, reloaded. It knows no protocol."""
