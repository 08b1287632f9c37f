"""What an exception looks like on the other side of the line."""

import pickle

import pytest

from headway.errors import InvalidInput
from headway.runtime.workers.process.failures import RemoteError, error_of, failure_of


class Picky(Exception):
    def __init__(self, *, field: str) -> None:
        super().__init__(field)


@pytest.mark.parametrize("error", [ValueError("a", 1), KeyError("k")])
def test_an_exception_that_can_travel_is_itself_again(error: Exception) -> None:
    again = error_of(failure_of(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert "in the worker process" in again.__notes__[0]


def test_an_error_of_ours_stays_what_it_is_however_long_its_text() -> None:
    again = error_of(failure_of(InvalidInput("x" * 100_000)))
    assert type(again) is InvalidInput
    assert str(again).startswith("x" * 1000)
    assert "(100000 characters)" in str(again)


@pytest.mark.parametrize(
    "error", [Picky(field="x"), ValueError(b"\0" * 2**20)], ids=["wants more", "too large"]
)
def test_one_that_cannot_has_its_name_and_its_words(error: Exception) -> None:
    failure = failure_of(error)
    assert len(pickle.dumps(failure)) < 200_000
    again = error_of(failure)
    assert isinstance(again, RemoteError)
    assert type(again).__name__ == type(error).__name__
    assert str(error).startswith(str(again)[:1000])
