"""OpenAI's routes for sound and images, described."""

from typing import Any

from headway.server.families.openapi.parts import RUNNING, Operation, body_of, json_of, operation_of
from headway.server.service.schemas import Schema, ref

_TEXT: Schema = {"type": "string"}


def media(urgency: list[Any]) -> dict[str, dict[str, Operation]]:
    heard = json_of(
        "its text; `verbose_json` has segments with their times",
        {"anyOf": [ref("Transcription"), ref("VerboseTranscription")]},
    )
    heard["content"]["text/plain"] = {"schema": _TEXT}
    example = {"model": "name of a model", "prompt": "a red disc", "size": "auto"}
    form = {"multipart/form-data": {"schema": ref("TranscriptionForm")}}
    transcribe = operation_of(
        *("openai", "transcribe", "A clip of speech as text", heard, RUNNING),
        parameters=urgency,
        body={"required": True, "content": form},
    )
    draw = operation_of(
        *("openai", "draw", "Images for a prompt, as PNG in base64"),
        json_of("one or more", ref("ImagesAnswer")),
        RUNNING,
        parameters=urgency,
        body=body_of(ref("ImagesRequest"), example=example),
    )
    return {
        "/v1/audio/transcriptions": {"post": transcribe},
        "/v1/images/generations": {"post": draw},
    }
