"""HTTP/1.1: one connection, its parser, its answers as bytes."""
