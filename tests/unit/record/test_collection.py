"""The supervisor's garbage is collected between looks, where there is much of it, and only then."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from distdebug.record import collection
from distdebug.record.collection import no_collection


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def knots(count: int) -> weakref.ref[Knot]:
    for _ in range(count):
        last = Knot()
    return weakref.ref(last)


def test_much_garbage_is_collected_when_a_look_is_over() -> None:
    with no_collection():
        gc.collect()
        last = knots(collection.MOST_MORE_OBJECTS + 1000)
        assert last() is not None, "it was collected within a look"
        collection.collect_where_due()
        assert last() is None


def test_what_goes_by_itself_makes_no_collection_due() -> None:
    with no_collection():
        gc.collect()
        kept = knots(1)
        for _ in range(collection.MOST_MORE_OBJECTS * 2):
            _ = [[]]
        collection.collect_where_due()
        assert kept() is not None, "it was collected, though next to nothing had come to stay"


@pytest.mark.parametrize("enabled", [True, False])
def test_afterwards_it_is_as_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled
