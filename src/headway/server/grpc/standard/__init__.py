"""gRPC's own services: health, and reflection under both of its names.

Their messages are generated here, without a test for the runtime's version, and live in our own
pool. So no other package's generated code is needed, which would want a protobuf of its own age.
"""
