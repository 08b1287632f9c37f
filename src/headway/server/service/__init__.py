"""What all protocols ask of a model: signatures, arrays, options; find or wake, submit, answer."""
