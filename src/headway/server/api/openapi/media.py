"""OpenAI's routes for sound and images, described."""

from typing import Any

from headway.server.api.openapi.parts import Operation, body_of, json_of, operation_of
from headway.server.api.openapi.schemas import Schema, ref

_TEXT: Schema = {"type": "string"}


def media(errors: Any, urgency: list[Any]) -> dict[str, dict[str, Operation]]:
    heard = json_of(
        "its text; `verbose_json` has segments with their times",
        {"anyOf": [ref("Transcription"), ref("VerboseTranscription")]},
    )
    heard["content"]["text/plain"] = {"schema": _TEXT}
    example = {"model": "name of a model", "prompt": "a red disc", "size": "auto"}
    return {
        "/v1/audio/transcriptions": {
            "post": {
                **operation_of("openai", "transcribe", "A clip of speech as text"),
                "parameters": urgency,
                "requestBody": {
                    "required": True,
                    "content": {"multipart/form-data": {"schema": ref("TranscriptionForm")}},
                },
                "responses": {"200": heard, **errors},
            }
        },
        "/v1/images/generations": {
            "post": {
                **operation_of("openai", "draw", "Images for a prompt, as PNG in base64"),
                "parameters": urgency,
                "requestBody": body_of(ref("ImagesRequest"), example=example),
                "responses": {"200": json_of("one or more", ref("ImagesAnswer")), **errors},
            }
        },
    }
