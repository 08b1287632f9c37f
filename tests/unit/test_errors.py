"""The tree drawn in the docstring of `headway.errors` is that of its classes; what errors hold."""

import gc
import inspect
import re
import weakref

import pytest

from headway import errors

NAME = re.compile(r"[A-Z]\w+")


def drawn_parents() -> dict[str, str]:
    """Child to parent, as drawn. Each level of the tree is indented by four characters."""
    drawing = inspect.getdoc(errors) or ""
    parents: dict[str, str] = {}
    path = ["HeadwayError"]
    for line in drawing.splitlines():
        branch = re.match(r"([│ ]*)[├└]── (.*)", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4 + 1
        listed = re.split(r" {2,}", branch[2])[0]  # what follows two spaces is the explanation
        names = NAME.findall(listed)
        parents |= dict.fromkeys(names, path[depth - 1])
        path[depth:] = [names[-1]]
    return parents


def real_parents() -> dict[str, str]:
    return {
        name: each.__bases__[0].__name__
        for name, each in vars(errors).items()
        if inspect.isclass(each)
        and issubclass(each, errors.HeadwayError)
        and each is not errors.HeadwayError
    }


def test_the_tree_in_the_docstring_is_the_real_tree() -> None:
    assert drawn_parents() == real_parents()


def test_every_error_has_one_base_so_that_the_drawing_can_be_a_tree() -> None:
    for name in real_parents():
        assert len(getattr(errors, name).__bases__) == 1


def test_every_error_has_a_code_word_of_its_own() -> None:
    codes = [getattr(errors, name).code for name in (*real_parents(), "HeadwayError")]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_a_config_error_starts_with_the_name_of_its_field() -> None:
    error = errors.ConfigError("must be at least 1, not 0", field="workers")
    assert str(error) == "workers: must be at least 1, not 0"
    assert error.field == "workers"


def test_errors_carry_their_limit_and_when_to_come_back() -> None:
    full = errors.QueueFull("the queue is full", limit=8, retry_after_s=0.5)
    assert (full.limit, full.retry_after_s) == (8, 0.5)
    assert errors.InputTooLarge("9 rows", limit=8).limit == 8
    assert errors.Shed("too late", retry_after_s=0.1).retry_after_s == 0.1


def test_whose_fault_it_is_can_be_told_from_the_class() -> None:
    with pytest.raises(errors.Unavailable):
        raise errors.DeadlineExceeded("too late")
    with pytest.raises(errors.RequestError):
        raise errors.Poison("killed its worker twice")
    assert not issubclass(errors.ModelFailed, errors.Unavailable | errors.RequestError)


class Body:
    """What a request holds while it is handled."""


def refused(body: Body) -> errors.InvalidInput:
    """An error with a cause and, through the handler in which it was raised, another context."""
    cause, context = KeyError("cause"), ValueError("context")
    try:
        try:
            raise cause
        except KeyError:
            pass
        try:
            raise context
        except ValueError:
            raise errors.InvalidInput("no") from cause
    except errors.InvalidInput as error:
        return error


def test_an_error_that_is_kept_holds_no_frame_through_its_cause_or_its_context() -> None:
    gc.disable()
    try:
        body = Body()
        is_kept = weakref.ref(body)
        error = errors.without_frames(refused(body))
        del body
        assert is_kept() is None
    finally:
        gc.enable()
    for each in (error, error.__cause__, error.__context__):
        assert each is not None
        assert each.__traceback__ is None
    assert error.__cause__ is not error.__context__


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    assert errors.without_frames(first) is first
