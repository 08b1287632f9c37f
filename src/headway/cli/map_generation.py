"""`headway map` over a language model: a prompt a line, its answer a line."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.config import ModelConfig
    from headway.hosting.generation.served import ServedGenerator

AHEAD = 4  # times the answers computed at once: no step waits for the file


def generator_of(config: "ModelConfig") -> "ServedGenerator":
    """No caller waits for a line, so settings of time are ignored."""
    import msgspec

    from headway.hosting.generation.served import ServedGenerator
    from headway.models import catalogue
    from headway.models.chat.model import LanguageModel

    ahead = AHEAD * (config.max_sequences or 256)
    config = msgspec.structs.replace(config, timeout_ms=None, max_queue=ahead)
    model = catalogue.build(config.target, config.options)
    assert isinstance(model, LanguageModel)
    return ServedGenerator(config, model)


def answer_of(served: "ServedGenerator") -> Callable[[Any], Awaitable[bytes]]:
    from headway.hosting.registry import Ask
    from headway.server.families.plain.handlers import json_of

    async def answer(value: Any) -> bytes:
        prompt, options = prompt_of(value)
        return json_of(await served.predict(prompt, Ask(parameters=options)))

    return answer


def prompt_of(value: Any) -> tuple[Any, dict[str, Any]]:
    """A line: a text, messages, token ids; or an object with one of them and options for it."""
    if not isinstance(value, dict):
        return value, {}
    found = [name for name in ("prompt", "messages") if name in value]
    if len(found) != 1:
        raise InvalidInput("an object needs either a prompt or messages")
    (name,) = found
    return value[name], {each: option for each, option in value.items() if each != name}
