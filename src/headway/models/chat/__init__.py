"""Language models to talk to: where their files come from, and how text becomes tokens and back."""
