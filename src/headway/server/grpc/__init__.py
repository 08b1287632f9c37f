"""v2 over gRPC: `inference.GRPCInferenceService`, health and reflection. Needs `headway[grpc]`.

`inference_pb2.py` and `.pyi` are generated. After a change of `inference.proto`, with grpcio-tools
installed, in the repository's root:

    cd src/headway/server/grpc
    python -m grpc_tools.protoc -I ../../.. --python_out=../../.. --pyi_out=../../.. \\
        ../../../headway/server/grpc/inference.proto
    sed -i -e '/_runtime_version.Validate/,/^)/d' -e '/runtime_version/d' \\
        -e 's/^from google.protobuf import descriptor_pool/from headway.server.grpc import pool/' \\
        inference_pb2.py

The second command gives it a pool of its own (see `pool.py`), and takes out the test for a runtime
as new as the compiler: what is left is a description that every protobuf can read.
"""
