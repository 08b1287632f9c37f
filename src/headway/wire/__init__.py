"""Bytes in, bytes out: sockets, TLS, HTTP/1.1 and HTTP/2."""
