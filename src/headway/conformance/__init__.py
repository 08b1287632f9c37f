"""`headway conformance`: does a server keep the Open Inference Protocol (v2)?

Each check is one sentence of the specification, asked of a running server. `checks.py` says what a
check is, and runs it; `rest.py`, `mistakes.py`, `extensions.py` and `grpc.py` have the checks;
`subject.py` is the server that is asked, with requests that its model's metadata allows.
"""
