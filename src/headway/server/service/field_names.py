"""An error about a field, in the words of the dialect that the caller speaks."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headway.errors import InvalidInput


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """`names`: patterns of OpenAI's fields, as errors begin with them, and the dialect's own. The
    first that fits counts."""
    try:
        yield
    except InvalidInput as error:
        text = str(error)
        for pattern, own in names.items():
            said, found = re.subn(rf"\A{pattern}(?=[:.\[])", own, text, count=1)
            if found:
                raise type(error)(said) from error.__cause__
        raise
