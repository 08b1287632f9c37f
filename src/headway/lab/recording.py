"""A server's traffic as an anonymous trace: when requests came, how large they were, their class,
and their tenants under invented names.

Pure: pages of `/admin/explain` go in, lines of JSON come out, with the names of Mooncake's traces.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_REQUESTS = 2_000_000


class Recording:
    """The requests seen so far."""

    def __init__(self, *, keeps_tenants: bool = False) -> None:
        """`keeps_tenants`: by their own names."""
        self.missed = 0  # batches and answers that the server had forgotten, or left out
        self.has_gap = False
        self._keeps_tenants = keeps_tenants
        self._tenants: dict[str, str] = {}
        self._known: set[tuple[str, str, str, int, float]] = set()
        self._found: list[tuple[float, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._found)

    @property
    def is_full(self) -> bool:
        return len(self._found) >= MOST_REQUESTS

    def add(self, page: Mapping[str, Any], *, since: float) -> None:
        """Requests that came from `since` on, in Unix time."""
        self.missed += page["left_out"]
        self.has_gap = self.has_gap or page["has_gap"]
        for batch in page["batches"]:
            for item in batch["items"] or ():
                about = {
                    "input_length": max(1, item["size"]),
                    "output_length": 1,
                    "rows": item["rows"],
                    "priority": item["priority"],
                    "tenant": item["tenant"],
                }
                self._keep(
                    ("item", batch["model"], batch["version"], item["id"]), item, about, since
                )
        for answer in page["answers"]:
            about = {
                "input_length": max(1, answer["prompt_tokens"]),
                "output_length": max(1, answer["tokens"]),
            }
            key = ("answer", answer["model"], answer["version"], answer["sequence"])
            self._keep(key, answer, about, since)

    def _keep(
        self,
        key: tuple[str, str, str, int],
        source: Mapping[str, Any],
        about: dict[str, Any],
        since: float,
    ) -> None:
        """Once: what a lost worker had is in two batches. A model that is loaded again counts its
        items from the start again, so their arrival belongs to the key."""
        arrived_at = source["arrived_at"]
        known = (*key, arrived_at)
        if known in self._known or arrived_at < since:
            return
        self._known.add(known)
        if "tenant" in about and not self._keeps_tenants:
            name = about["tenant"]
            about["tenant"] = self._tenants.setdefault(name, f"t{len(self._tenants) + 1}")
        self._found.append((arrived_at, about))

    def lines(self) -> Iterator[str]:
        """In the order of arrival; `timestamp` in ms since the first."""
        found: Iterable[tuple[float, dict[str, Any]]] = sorted(
            self._found, key=lambda each: each[0]
        )
        first = None
        for at, about in found:
            first = at if first is None else first
            yield json.dumps({"timestamp": round((at - first) * 1e3, 3), **about})
