"""v2 over gRPC: `inference.GRPCInferenceService`, health and reflection. Needs `headway[grpc]`.

`inference_pb2.py` and `.pyi`, and those in `standard/`, are generated. After a change of a .proto,
with grpcio-tools installed, in `src`:

    python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. \\
        headway/server/grpc/*.proto headway/server/grpc/standard/*.proto
    sed -i -e '/_runtime_version.Validate/,/^)/d' -e '/runtime_version/d' \\
        -e 's/^from google.protobuf import descriptor_pool/from headway.server.grpc import pool/' \\
        headway/server/grpc/*_pb2.py headway/server/grpc/standard/*_pb2.py

The second command gives it a pool of its own (see `pool.py`), and takes out the test for a runtime
as new as the compiler: what is left is a description that every protobuf can read.
"""
