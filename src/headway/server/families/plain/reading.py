"""What a large body has, as its model takes it: checked and made off the event loop, one value
after the other."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headway.hosting.registry import ServedModel
from headway.server.bodies.background import Steps
from headway.server.bodies.encoding import is_large
from headway.server.bodies.json_body import SMALL_BYTES
from headway.wire.messages import Request

_FEW = 64  # small values between two rests


def held_for(request: Request, served: ServedModel) -> AbstractContextManager[None]:
    """A model whose value comes to the queue later is not closed meanwhile."""
    return served.held() if len(request.body) > SMALL_BYTES else nullcontext()


def read_all(served: ServedModel, values: Sequence[Any], steps: Steps) -> Sequence[Any]:
    """In a thread. One that is wrong has its error in its place."""
    made = []
    for number, value in enumerate(values):
        made.append(served.read(value))
        if is_large(value) or not number % _FEW:
            steps.rest()
    return made
