"""gRPC on HTTP/2 of our own: one asyncio.Protocol for each connection, on uvloop.

`frames.py`, `heads.py`, `inbox.py` and `budget.py` are pure: bytes in, values out. A
connection is `connection.py` (what comes in) on `lifetime.py` (what it costs, how it ends) on
`sending.py`; these hold the rules of HTTP/2, `call.py` those of gRPC. The reasons for all this, and
for its limits, are in docs/decisions/0014-own-grpc-stack.md.
"""
