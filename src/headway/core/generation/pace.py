"""How many tokens of prompts may join a step of decodes without making it much longer.

A chunk makes a step at most `max_stretch` times as long, as long as prompts get done in reasonable
time: a few times what each would take by itself. A prompt that is later than that may stretch steps
in proportion, so that under load prompts and decodes slow down together; where `late_stretch` ends
that, prompts wait instead. So may prompts that outnumber the decodes. Decodes
and a chunk together fill whole tiles of the device.

The time of a step is learned from steps: for each class of sizes (powers of two) a mean size and a
mean time; between them it is a straight line. Beyond the largest size seen, twice as much is tried.
If the machine paused during the first step of a size, that size would look slow and never be tried
again: so a size is assumed to be no slower than a few smaller steps together.
"""

import math

_SMOOTH = 0.2
_STEEPEST = 2.0  # a point may have at most this many times the time per token of a smaller step
_LEAST = 8  # tokens of a chunk: below that a prompt would never get done


class ChunkPace:
    def __init__(
        self,
        max_stretch: float,
        late_stretch: float = math.inf,
        tile: int = 1,
        late_after: float = 3.2,
    ) -> None:
        self._max_stretch = max_stretch
        self._late_stretch = max(max_stretch, late_stretch)
        self._tile = tile
        self._late_after = late_after  # a prompt is late after this many times its time alone
        self._means: dict[int, tuple[float, float]] = {}  # tokens and seconds, by class
        self._points: list[tuple[float, float]] = []  # the same, ascending; seconds never fall
        self._last_decode_s = 0.0

    def expected_s(self, tokens: int, *, has_prompts: bool) -> float:
        """The expected time of a step, rather too short than too long.

        A step of decodes alone is expected to take as long as the last one.
        """
        if not self._points:
            return 0.0
        seconds = self._seconds(tokens)
        return seconds if has_prompts else min(seconds, self._last_decode_s)

    def observe(self, tokens: int, seconds: float, *, has_prompts: bool = True) -> None:
        if not has_prompts:
            self._last_decode_s = seconds
        kind = (tokens - 1).bit_length()
        known = self._means.get(kind)
        if known is None or known[1] > 4 * seconds:  # it was measured during a pause
            self._means[kind] = float(tokens), seconds
        else:
            # One long pause of the machine must not count as the model's time.
            seconds = min(seconds, 4 * known[1])
            self._means[kind] = (
                known[0] + (tokens - known[0]) * _SMOOTH,
                known[1] + (seconds - known[1]) * _SMOOTH,
            )
        longest, rate_s = 0.0, math.inf
        self._points = []
        for size, mean_s in sorted(self._means.values()):
            longest = max(longest, min(mean_s, _STEEPEST * rate_s * size))
            rate_s = min(rate_s, longest / size)
            self._points.append((size, longest))

    def lateness(self, tokens: int, waited_s: float) -> float:
        """How late a prompt of this many tokens is; 1 or less: in time."""
        if not self._points:
            return 0.0
        size, seconds = self._points[-1]
        alone_s = tokens * seconds / size
        return waited_s / (self._late_after * alone_s) if alone_s else 0.0

    def chunk(self, decodes: int, most: int, haste: float = 0.0, at_most: float = math.inf) -> int:
        """How many tokens of prompts may join a step of `decodes` decodes, up to `most`.

        `at_most`: the largest stretch, however late a prompt is.
        """
        if not decodes or not self._points:
            return most
        stretch = min(self._late_stretch, self._max_stretch * max(1.0, haste), at_most)
        together = int(self._largest(self._seconds(decodes) * stretch) + 1e-6)
        # Beyond the known sizes, fill up the last tile: else larger steps would never be timed.
        is_known = together <= self._points[-1][0]
        tiles = together // self._tile if is_known else -(-together // self._tile)
        whole = tiles * self._tile
        chunk = (whole if whole > decodes else together) - decodes
        return max(min(_LEAST, most), min(most, chunk))

    def _seconds(self, tokens: float) -> float:
        before = self._points[0]
        for point in self._points:
            if point[0] >= tokens:
                if point[0] == before[0]:
                    return point[1]
                share = max(0.0, (tokens - before[0]) / (point[0] - before[0]))
                return before[1] + (point[1] - before[1]) * share
            before = point
        return before[1]

    def _largest(self, limit_s: float) -> float:
        """The largest number of tokens with an expected time up to `limit_s`."""
        size, seconds = self._points[0]
        for point in self._points[1:]:
            if point[1] > limit_s:
                return size + (point[0] - size) * (limit_s - seconds) / (point[1] - seconds)
            size, seconds = point
        return 2 * size


_DOUBT = 0.1  # of a step's expected time
_LEAST_S = 0.0005  # timers are late, too


class HandOver:
    """When to decide the next step, while one runs on the device.

    Late: a sequence that arrives until then is in it, and does not wait one step more. But early
    enough for the device to find it when the running step ends: the host takes its time to decide a
    step and to hand it over, and how long the running step takes is only estimated. Times are of
    one clock. At first the host is taken to be slow.
    """

    def __init__(self) -> None:
        self._host_s = 0.002

    def took(self, seconds: float) -> None:
        """Learn how long the host needed to decide a step and hand it over."""
        seconds = min(seconds, 4 * self._host_s)
        self._host_s += (seconds - self._host_s) * _SMOOTH

    def at(self, began: float, expected_s: float) -> float:
        """When to decide the next step, if the running step began at `began`."""
        return began + (1 - _DOUBT) * expected_s - 1.5 * self._host_s - _LEAST_S


# Parts of the step's expected time.
_SINCE_LAST = 0.02
_SINCE_FIRST = 0.05
_MOST_SINCE_LAST_S = 0.002


class IdleStart:
    """When an idle engine begins: a moment after the last prompt of a burst.

    Callers that ask together arrive one after the other, a fraction of a millisecond apart. If the
    step began with the first of them, that one would decode beside the prompts of all others, which
    would be computed in small chunks for its sake. That moment is a fiftieth of the step's own
    time, so a single caller does not notice it.
    """

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
