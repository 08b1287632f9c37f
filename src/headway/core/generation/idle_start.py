"""When an idle engine begins: a moment after the last prompt of a burst.

Callers that ask together arrive one after the other, a fraction of a millisecond apart. If the step
began with the first of them, that one would decode beside the prompts of all others, which would be
computed in small chunks for its sake. So the step begins once no prompt has come for a moment. That
moment is a fiftieth of the step's own time, so a single caller does not notice it.
"""

import math

from headway.core.generation.pace import ChunkPace

# Parts of the step's expected time.
_SINCE_LAST = 0.02
_SINCE_FIRST = 0.05
_MOST_SINCE_LAST_S = 0.002


class IdleStart:
    def __init__(self, step_tokens: int, pace: ChunkPace) -> None:
        self._step_tokens = step_tokens
        self._pace = pace
        self._first_at = math.inf
        self._last_at = -math.inf
        self._tokens = 0  # of the prompts that arrived since the last step began

    def add(self, at: float, tokens: int) -> None:
        """A prompt arrived."""
        self._first_at = min(self._first_at, at)
        self._last_at = max(self._last_at, at)
        self._tokens += tokens

    def begins_at(self) -> float:
        """When to begin the step; in the past if no prompt arrived since the last step."""
        expected_s = self._pace.expected_s(self._tokens, has_prompts=True)
        if self._tokens >= self._step_tokens or not expected_s:
            return -math.inf
        pause_s = min(_MOST_SINCE_LAST_S, _SINCE_LAST * expected_s)
        return min(self._last_at + pause_s, self._first_at + _SINCE_FIRST * expected_s)

    def reset(self) -> None:
        """A step begins, or no prompt waits any more."""
        self._first_at, self._last_at, self._tokens = math.inf, -math.inf, 0
