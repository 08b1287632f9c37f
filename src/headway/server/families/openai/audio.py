"""OpenAI's API for speech: `/v1/audio/transcriptions`, as an unmodified `openai` client calls it.

Any model with one input `audio` and one output `text` can answer.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.auth.access import Access
from headway.server.bodies.multipart_form import read_form
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_for_task
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes, no_query
from headway.wire.messages import Request, Response

TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"
_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")


class TranscriptionForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A parameter that is not served but would change the answer is refused, not ignored."""

    model: Annotated[str, Meta(min_length=1)]
    file: bytes
    language: str = ""
    prompt: str = ""
    response_format: Annotated[str, Meta(extra_json_schema={"enum": list(_FORMATS)})] = "json"
    stream: bool = False
    temperature: float = 0.0
    granularities: list[str] = msgspec.field(name="timestamp_granularities[]", default_factory=list)
    include: list[str] = msgspec.field(name="include[]", default_factory=list)
    chunking_strategy: str = "auto"

    def check(self) -> None:
        self._check_format()
        if self.temperature != 0:
            raise InvalidInput("temperature: only 0 is supported: models give the likeliest text")
        if self.prompt:
            raise InvalidInput("prompt: this field is not supported")
        for each in self.include:
            raise InvalidInput(
                f"include: {each!r} is not supported: there are no log-probabilities"
            )
        if self.chunking_strategy != "auto":
            raise InvalidInput(
                "chunking_strategy: only 'auto' is supported: clips are cut at pauses"
            )

    def _check_format(self) -> None:
        if self.response_format not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise InvalidInput(f"response_format: {self.response_format!r} is not one of {known}")
        if self.stream and self.response_format not in ("json", "text"):
            raise InvalidInput(
                f"stream: needs response_format json or text, not {self.response_format!r}"
            )
        for each in self.granularities:
            if each != "segment":
                raise InvalidInput(
                    f"timestamp_granularities: {each!r} is not supported; only 'segment' is"
                )
            if self.response_format != "verbose_json":
                raise InvalidInput("timestamp_granularities: needs response_format = verbose_json")


class AudioUsage(TypedDict):
    type: Literal["duration"]
    seconds: int


class Transcription(TypedDict):
    text: str
    usage: AudioUsage


class TranscriptSegment(TypedDict):
    id: int
    start: float
    end: float
    text: str
    temperature: float


class VerboseTranscription(TypedDict):
    """Contains only what is known: models do not report how sure they were."""

    task: Literal["transcribe"]
    duration: float
    text: str
    segments: list[TranscriptSegment]
    language: NotRequired[str]


class Audio(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            Route(
                *("POST", "/v1/audio/transcriptions", self.transcriptions),
                *(Access.INFER, ErrorFormat.OPENAI),
                tag="openai",
                summary="A clip of speech as text",
                takes=Takes(
                    TranscriptionForm,
                    is_decoded=False,
                    null_is_absence=False,
                    media="multipart/form-data",
                ),
                gives=Gives((Transcription, VerboseTranscription), ("text/plain",)),
                task="automatic-speech-recognition",
            )
        ]

    async def transcriptions(self, request: Request) -> Response:
        no_query(request)
        kind = request.headers.get("content-type", "")
        form = (await asyncio.to_thread(read_form, kind, request.body)).fields_of(TranscriptionForm)
        form.check()
        served = await find_for_task(
            self._inference, request, form.model, "automatic-speech-recognition"
        )
        ask = ask_of({"language": form.language} if form.language else {}, request)
        with served.held():
            transcript = await served.predict(form.file, ask)
        answer = _events(transcript) if form.stream else _ANSWERS[form.response_format](transcript)
        answer.headers = ask.headers()
        return answer


# ---- how the answer looks


def _json(transcript: Any) -> Response:
    seconds = math.ceil(getattr(transcript, "duration_s", 0.0))
    usage: AudioUsage = {"type": "duration", "seconds": seconds}
    answer: Transcription = {"text": str(transcript), "usage": usage}
    return Response(msgspec.json.encode(answer))


def _text(transcript: Any) -> Response:
    return Response(f"{transcript}\n".encode(), content_type=TEXT)


def _verbose(transcript: Any) -> Response:
    answer: VerboseTranscription = {
        "task": "transcribe",
        "duration": getattr(transcript, "duration_s", 0.0),
        "text": str(transcript),
        "segments": [
            {
                "id": index,
                "start": segment.start_s,
                "end": segment.end_s,
                "text": segment.text,
                "temperature": 0.0,
            }
            for index, segment in enumerate(_segments(transcript))
        ],
    }
    if language := getattr(transcript, "language", ""):
        answer["language"] = language
    return Response(msgspec.json.encode(answer))


def _srt(transcript: Any) -> Response:
    blocks = [
        f"{number}\n{_clock(each.start_s, ',')} --> {_clock(each.end_s, ',')}\n{each.text}\n"
        for number, each in enumerate(_segments(transcript), 1)
    ]
    return Response("\n".join(blocks).encode(), content_type=TEXT)


def _vtt(transcript: Any) -> Response:
    blocks = [
        f"{_clock(each.start_s, '.')} --> {_clock(each.end_s, '.')}\n{each.text}\n"
        for each in _segments(transcript)
    ]
    return Response("\n".join(["WEBVTT\n", *blocks]).encode(), content_type=TEXT)


def _events(transcript: Any) -> Response:
    """A delta for each part that was heard, then the whole: as OpenAI streams it. The parts of a
    clip are heard in one batch, so they all come at once."""
    parts = [each.text for each in _segments(transcript)] or [str(transcript)]
    deltas = [part if index == 0 else f" {part}" for index, part in enumerate(parts)]
    events: list[dict[str, Any]] = [
        {"type": "transcript.text.delta", "delta": delta} for delta in deltas if delta
    ]
    events.append({"type": "transcript.text.done", "text": str(transcript)})
    lines = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]
    return Response(b"".join(lines), content_type=EVENTS)


def _segments(transcript: Any) -> Sequence[Any]:
    return [each for each in getattr(transcript, "segments", ()) if each.text]


def _clock(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{point}{milliseconds:03d}"


_ANSWERS = dict(zip(_FORMATS, (_json, _text, _verbose, _srt, _vtt), strict=True))
