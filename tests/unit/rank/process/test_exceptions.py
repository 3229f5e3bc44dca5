"""What an exception came of."""

from __future__ import annotations

import pytest

from distdebug.rank.process.exceptions import came_of, leaf_of


class Group(Exception):
    """As `ExceptionGroup`, which Python 3.10 does not have."""

    def __init__(self, *inner: BaseException) -> None:
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = inner


LOST = RuntimeError("Connection closed by peer")
OWN = KeyError("labels")


@pytest.mark.parametrize(
    ("error", "leaf"),
    [
        (OWN, OWN),
        (Group(OWN), OWN),
        (Group(LOST, Group(OWN)), OWN),
        (Group(Group(LOST)), LOST),
    ],
    ids=["none", "one", "its own, in a group within", "lost connections alone"],
)
def test_the_leaf(error: BaseException, leaf: BaseException) -> None:
    assert leaf_of(error) is leaf


def test_another_attribute_of_that_name() -> None:
    odd = ValueError("odd")
    for value in ((), (1, 2), ["a"], property()):
        odd.exceptions = value  # type: ignore[attr-defined]
        assert leaf_of(odd) is odd


def test_from_none_hides_nothing_from_us() -> None:
    def wrapped() -> None:
        try:
            try:
                raise Group(LOST)
            except Group:
                raise ValueError("step 4 failed") from None
        except ValueError as error:
            raise TypeError("training failed") from error

    with pytest.raises(TypeError) as caught:
        wrapped()
    first, second = came_of(caught.value)
    assert isinstance(first, ValueError)
    assert second is LOST


def test_a_circle_ends() -> None:
    one, other = ValueError(), TypeError()
    one.__cause__, other.__cause__ = other, one
    assert list(came_of(one)) == [other]
