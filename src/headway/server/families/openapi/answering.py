"""Which routes some model here answers: the page of /docs leaves out the others."""

import re
from collections.abc import Sequence
from typing import Any

from headway.hosting.registry import ServedModel
from headway.server.service import kinds

UNANSWERED = "x-headway-unanswered"  # on an operation: no model that is served now can answer it
_ROUTES = [
    (kinds.embeds, re.compile(r"/v1/embeddings|/v[12]/embed")),
    (kinds.ranks, re.compile(r"/v[12]/rerank")),
    (kinds.transcribes, re.compile(r"/v1/audio/.*")),
    (kinds.draws, re.compile(r"/v1/images/.*")),
    (
        kinds.generates,
        re.compile(r"/v1/((chat/)?completions|(un)?load_lora_adapter)|/(de)?tokenize"),
    ),
]


def mark_unanswered(paths: dict[str, dict[str, Any]], served: Sequence[ServedModel]) -> None:
    for does, pattern in _ROUTES:
        if not any(does(model) for model in served):
            for path, operations in paths.items():
                if pattern.fullmatch(path):
                    for operation in operations.values():
                        operation[UNANSWERED] = True
