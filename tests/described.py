"""Answers held against what `/openapi.json` promises of them."""

import copy
from typing import Any

import httpx
import jsonschema_rs


def check_described(http: httpx.Client, template: str, answer: httpx.Response) -> None:
    """It has every field that is promised, of the promised type, and no field that is not."""
    document = http.get("/openapi.json").json()
    operation = document["paths"][template][answer.request.method.lower()]
    content = operation["responses"][str(answer.status_code)]["content"]
    schema = content[answer.headers["content-type"].partition(";")[0]]["schema"]
    components = copy.deepcopy(document["components"])
    _close(components["schemas"])
    validator = jsonschema_rs.validator_for({**schema, "components": components})
    validator.validate(answer.json())


def _close(part: Any) -> None:
    """A field that no type names would go unnoticed."""
    if isinstance(part, dict):
        if "properties" in part and part.get("title"):  # made from a type of the handlers
            part.setdefault("additionalProperties", False)
        for each in part.values():
            _close(each)
    elif isinstance(part, list):
        for each in part:
            _close(each)
