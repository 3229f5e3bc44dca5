"""When a call counts as the clean-up of an exception that goes on afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from distdebug.rank.process.exceptions import _in_cleanup

Seen = list[bool]


def look(seen: Seen) -> None:
    error = sys.exc_info()[1]
    assert error is not None
    seen.append(_in_cleanup(sys._getframe(1), error))


def in_finally(seen: Seen) -> None:
    try:
        raise KeyError("state")
    finally:
        look(seen)


def in_a_function_of_finally(seen: Seen) -> None:
    def shut_down() -> None:
        look(seen)

    try:
        raise KeyError("state")
    finally:
        shut_down()


def in_exit(seen: Seen) -> None:
    class Session:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_error: object) -> None:
            look(seen)

    with Session():
        raise KeyError("state")


def in_a_context_manager(seen: Seen) -> None:
    @contextmanager
    def session() -> Iterator[None]:
        try:
            yield
        finally:
            look(seen)

    with session():
        raise KeyError("state")


def in_except(seen: Seen) -> None:
    try:
        raise KeyError("state")
    except KeyError:
        look(seen)


def in_except_of_try_finally(seen: Seen) -> None:
    try:
        raise KeyError("state")
    except KeyError:
        look(seen)
    finally:
        seen.append(False)


def in_except_that_raises_again(seen: Seen) -> None:
    try:
        raise KeyError("state")
    except KeyError:
        look(seen)
        raise


def in_a_function_of_except_that_raises_another(seen: Seen) -> None:
    def save() -> None:
        look(seen)

    try:
        raise OSError("state")
    except OSError as error:
        save()
        raise KeyError("state") from error


def in_except_that_exits(seen: Seen) -> None:
    with suppress(SystemExit):
        try:
            raise KeyError("state")
        except KeyError:
            look(seen)
            sys.exit(3)


def in_except_that_exits_well(seen: Seen) -> None:
    with suppress(SystemExit):
        try:
            raise KeyError("state")
        except KeyError:
            look(seen)
            sys.exit(0)


def in_except_that_may_go_on(seen: Seen) -> None:
    for attempt in range(2):
        try:
            raise KeyError("state")
        except KeyError:
            look(seen)
            if attempt < 2:
                continue
            raise


@pytest.mark.parametrize(
    "clean_up",
    [
        in_finally,
        in_a_function_of_finally,
        in_exit,
        in_a_context_manager,
        in_except_that_raises_again,
        in_a_function_of_except_that_raises_another,
        in_except_that_exits,
    ],
)
def test_the_exception_goes_on(clean_up: Callable[[Seen], None]) -> None:
    seen: Seen = []
    with suppress(KeyError):
        clean_up(seen)
    assert seen == [True]


@pytest.mark.parametrize(
    "handler",
    [
        in_except,
        in_except_of_try_finally,
        in_except_that_exits_well,
        in_except_that_may_go_on,
    ],
)
def test_the_exception_is_handled(handler: Callable[[Seen], None]) -> None:
    seen: Seen = []
    handler(seen)
    assert not any(seen)
