"""kserve's own clients, in an environment of their own: one JSON object a line in and out.

`{"id", "url", "protocol", "model", "texts", "datatype", "timeout_ms"}` is answered by
`{"id", "vectors"}` or `{"id", "status", "message", "retry_after"}`; `{"cancel": id}` takes it back.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import grpc
import httpx
import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

logging.disable(logging.CRITICAL)


def request_of(asked: dict[str, Any]) -> InferRequest:
    if asked["datatype"] == "BYTES":
        array = numpy.array([text.encode() for text in asked["texts"]], object)
    else:
        array = numpy.ones(len(asked["texts"]), numpy.float64)
    given = InferInput("input", list(array.shape), asked["datatype"])
    given.set_data_from_numpy(array, binary_data=asked["protocol"] == "grpc")
    return InferRequest(asked["model"], [given])


async def ask(asked: dict[str, Any]) -> dict[str, Any]:
    limit = asked["timeout_ms"]
    headers = {} if limit is None else {"headway-timeout-ms": str(limit)}
    try:
        if asked["protocol"] == "grpc":
            async with InferenceGRPCClient(asked["url"], retries=0) as client:
                found = await client.infer(request_of(asked), headers=tuple(headers.items()))
        else:
            client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
            try:
                url = f"http://{asked['url']}"
                found = await client.infer(url, request_of(asked), asked["model"], headers=headers)
            finally:
                await client.close()
    except httpx.HTTPStatusError as error:
        retry = error.response.headers.get("retry-after")
        return {"status": str(error.response.status_code), "message": str(error), "retry": retry}
    except grpc.RpcError as error:
        retry = dict(error.trailing_metadata() or ()).get("retry-after")
        return {"status": error.code().name, "message": error.details(), "retry": retry}
    return {"vectors": found.outputs[0].as_numpy().tolist()}


async def answer(asked: dict[str, Any]) -> None:
    try:
        said = await ask(asked)
    except asyncio.CancelledError:
        said = {"cancelled": True}
    except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
        said = {"broken": repr(error)}
    sys.stdout.write(json.dumps({"id": asked["id"], **said}) + "\n")
    sys.stdout.flush()


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**24)  # a request is a line
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: dict[int, asyncio.Task[None]] = {}
    while line := await reader.readline():
        asked = json.loads(line)
        if "cancel" in asked:
            tasks[asked["cancel"]].cancel()
        else:
            tasks[asked["id"]] = asyncio.create_task(answer(asked))


asyncio.run(main())
