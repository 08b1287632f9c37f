"""Speech to text: sound from files, clips cut into parts, and the models that hear them."""
