"""The parts that all protocols share: signatures, arrays, options; finding or waking a model,
submitting, answering."""
