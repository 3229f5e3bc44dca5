"""The ranks that `--ranks` of a plan names."""

from __future__ import annotations

import pytest

from distdebug.plan.planner import chosen_ranks


def test_ranks_and_ranges() -> None:
    assert chosen_ranks("0-2, 7,2-3", 8) == (0, 1, 2, 3, 7)


@pytest.mark.parametrize("text", ["²", "0-²", "-1", "a", "1-2-3", "0-", "3 -", "9" * 5000])
def test_what_is_no_rank_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        chosen_ranks(text, 8)
    assert str(refused.value).startswith(repr(text))
