"""Bodies of requests and answers: JSON, packed bodies, and their work off the event loop."""
