"""The tree drawn in the docstring of `headway.errors` is the tree of its classes."""

import inspect
import re

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
