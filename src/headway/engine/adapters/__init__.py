"""Low-rank adapters beside a model: read from PEFT's folders, placed in slots, added to rows."""
