"""What is known of a kind of finding stands in one record, and every kind is whole."""

from __future__ import annotations

from pathlib import Path

from distdebug.faults.actions import ACTIONS
from distdebug.record.kinds import KINDS, Family, kind_of
from tests.support import complete

ROOT = Path(__file__).resolve().parents[3]


def test_every_kind_is_whole_and_no_file_beside_has_a_table_of_them() -> None:
    assert [*complete.of_kinds(ROOT), *complete.tables_of_kinds(ROOT)] == []


def test_faults_lead_to_kinds_that_there_are_and_the_other_way_round() -> None:
    for action in ACTIONS.values():
        assert action.leads_to <= KINDS.keys(), action.name
    for kind in KINDS.values():
        assert kind.only_by <= ACTIONS.keys(), kind.name


def test_exit_codes_follow_from_the_family() -> None:
    codes = {Family.MISMATCH: {91}, Family.DEADLOCK: {92}, Family.DATA: {95}}
    for kind in KINDS.values():
        assert kind.exit_code in codes.get(kind.family, {0, 1, 93, 94, 96}), kind
        assert kind.title.isupper(), kind


def test_of_a_kind_of_another_version_no_more_is_said_than_its_name() -> None:
    other = kind_of("clock_skew")
    assert (other.title, other.follows, other.voted, other.stack_tells) == (
        "CLOCK SKEW",
        False,
        False,
        False,
    )
