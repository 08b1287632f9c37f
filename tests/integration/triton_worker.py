"""`tritonclient.http` in a process of its own: it blocks, gevent binds it to one thread, and so it
can leave as real clients do, by being killed. The messages are those of `kserve_worker.py`."""

import json
import re
import sys
from typing import Any

import numpy
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException


def ask(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["datatype"] == "BYTES":
        array = numpy.array([text.encode() for text in asked["texts"]], object)
    else:
        array = numpy.ones(len(asked["texts"]), numpy.float64)
    given = InferInput("input", list(array.shape), asked["datatype"])
    given.set_data_from_numpy(array)
    limit = asked["timeout_ms"]
    with InferenceServerClient(asked["url"]) as client:
        try:
            answer = client.infer(
                asked["model"], [given], timeout=None if limit is None else int(limit * 1000)
            )
        except InferenceServerException as error:
            status = re.search(r"\d{3}", str(error.status()))
            return {"status": status and status[0], "message": error.message(), "retry": None}
    return {"vectors": answer.as_numpy("embedding").tolist()}


for line in sys.stdin:
    message = json.loads(line)
    sys.stdout.write(json.dumps({"id": message["id"], **ask(message)}) + "\n")
    sys.stdout.flush()
