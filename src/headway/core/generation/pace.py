"""How many tokens of a prompt may join a step of decodes without making it much longer.

Learns the time of steps by their number of tokens, in classes of powers of two. What was not
measured yet is tried, one class above what is known at a time.
"""

_SMOOTH = 0.2
_LEAST = 8  # tokens of a chunk: below that a prompt would never get done


class Pace:
    def __init__(self, max_stretch: float) -> None:
        self._max_stretch = max_stretch
        self._seconds: dict[
            int, float
        ] = {}  # by class: of steps with 2^(class-1) < tokens <= 2^class

    def observe(self, tokens: int, seconds: float) -> None:
        kind = (tokens - 1).bit_length()
        known = self._seconds.get(kind)
        # A pause of the machine is not the model's: from below quickly, from above slowly.
        if known is None or seconds < known:
            self._seconds[kind] = seconds if known is None else known + (seconds - known) * 0.5
        else:
            self._seconds[kind] = known + (min(seconds, 4 * known) - known) * _SMOOTH

    def chunk(self, decodes: int, most: int) -> int:
        """Tokens of prompts that may be computed beside so many decodes, at most `most`."""
        kind = (decodes - 1).bit_length() if decodes else 0
        base = self._seconds.get(kind)
        if not decodes or base is None:
            return most
        limit_s = base * self._max_stretch
        best = decodes
        for each in range(kind, kind + 16):
            if 1 << each <= decodes:
                continue
            known = self._seconds.get(each)
            if known is not None and known > limit_s:
                # Within the class that is too long, assume that time grows with tokens.
                lower = self._seconds.get(each - 1, base)
                if lower < limit_s and known > lower:
                    share = (limit_s - lower) / (known - lower)
                    best = max(best, int((1 << (each - 1)) * (1 + share)))
                break
            best = 1 << each
            if known is None or best >= decodes + most:
                break
        return max(min(_LEAST, most), min(most, best - decodes))
