"""gRPC on HTTP/2 of our own: one asyncio.Protocol for each connection, on uvloop.

`frames.py`, `heads.py` and `inbox.py` are pure: bytes in, values out. `connection.py` and its half
`sending.py` hold the rules of HTTP/2, `call.py` those of gRPC, with the face of grpc.aio's context;
so the same methods serve on either stack. The reasons are in docs/decisions/0014-own-grpc-stack.md.
"""
