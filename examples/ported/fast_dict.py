"""Plain dicts, and an async route."""

from typing import Any

import headway

POSITIVE = {"good", "great", "fine"}


@headway.single
async def sentiment(body: dict[str, Any]) -> dict[str, Any]:
    words = str(body["text"]).lower().split()
    score = sum(word in POSITIVE for word in words) / max(1, len(words))
    return {"label": "positive" if score > 0.2 else "neutral", "score": score}
