"""What wrappers pair by position, given otherwise by some ranks; and what may differ."""

from __future__ import annotations

from collections.abc import Iterable

from distdebug.record.signature import hash64

from ..builder import Run, all_reduce

DDP, FSDP = "DistributedDataParallel", "fully_shard"
HEADS = ["rain float32[1,8]", "wind float32[1,8]"]
SWAPPED = HEADS[::-1]


def wraps(
    run: Run,
    ranks: Iterable[int],
    rows: list[str],
    wrapper: str = DDP,
    group: str = "0",
    most: int | None = None,
) -> None:
    """The ranks wrap these; their record has room for `most` of them."""
    for rank in ranks:
        run[rank].notes_down(
            "paired",
            line=25 + rank,
            wrapper=wrapper,
            group=[group, 0],
            seq=run[rank].groups[group, 0].issued,
            order=hash64(tuple(rows)),
            names=hash64(tuple(sorted(row.split(" ")[0] for row in rows))),
            rows="\n".join(rows[:most]),
            count=len(rows),
        )


def test_another_order() -> None:
    run = Run(3)
    wraps(run, [0, 1], HEADS)
    wraps(run, [2], SWAPPED)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("group_mismatch", (2,), (0, 1))
    assert found.proven
    assert found.message == (
        "ranks disagree on what DistributedDataParallel pairs by position: rank 2 has wind where "
        "the others have rain, at #0 of 2"
    )
    assert found.ranks[2].location.line == 27
    assert found.ranks[2].state == "has wind float32[1,8]"
    assert found.data["parameters"] == {"0": HEADS, "2": SWAPPED}


def test_without_a_majority_all_are_named() -> None:
    run = Run(2)
    wraps(run, [0], HEADS)
    wraps(run, [1], SWAPPED)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert found.culprits == (0, 1)
    assert found.message.endswith("rank 1 has wind where rank 0 has rain, at #0 of 2")


def test_a_shape_a_dtype_or_what_is_frozen() -> None:
    for other in ("wind float32[8,1]", "wind float16[1,8]", "wind float32[1,8] frozen"):
        run = Run(3)
        wraps(run, [0, 2], HEADS)
        wraps(run, [1], [HEADS[0], other])
        run.each(all_reduce(8))
        (found,) = run.errors()
        assert found.culprits == (1,)
        assert f"rank 1 has {other} where the others have {HEADS[1]}, at #1 of 2" in found.message


def test_one_of_several_models() -> None:
    run = Run(3)
    for rows in (HEADS, ["body float32[4]"]):
        wraps(run, [0, 1, 2], rows)
        run.each(all_reduce(8))
    wraps(run, [0, 1], HEADS)
    wraps(run, [2], SWAPPED)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert found.culprits == (2,)


def test_beyond_what_there_was_room_for() -> None:
    rows = [f"layer.{number} float32[4]" for number in range(9)]
    run = Run(3)
    wraps(run, [0, 1], rows, most=4)
    wraps(run, [2], [*rows[:7], rows[8], rows[7]], most=4)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert found.culprits == (2,)
    assert found.message.endswith("rank 2 has the 9 tensors in another order")


def test_one_layer_of_many() -> None:
    """A record has each order once, for the layers of a model are alike."""
    run = Run(3)
    wraps(run, [0, 1, 2], HEADS, FSDP)
    wraps(run, [2], SWAPPED, FSDP)
    run.each(all_reduce(8))
    (found,) = run.errors()
    assert found.culprits == (2,)
    assert found.message.endswith("rank 2 has wind where the others have rain, at #0 of 2")


def test_nothing_is_said_before_all_have_gone_on() -> None:
    run = Run(3)
    wraps(run, [0, 1], HEADS, FSDP)
    wraps(run, [2], SWAPPED, FSDP)
    assert run.errors() == []


def test_modules_of_other_names() -> None:
    run = Run(2)
    for rank in range(2):
        wraps(run, [rank], [f"expert_{rank} float32[4,4]", "router float32[4]"])
    run.each(all_reduce(8))
    assert run.errors() == []


def test_another_order_of_wrapping() -> None:
    run = Run(2)
    for rank, order in enumerate((1, -1)):
        for shape in ("[4,8]", "[8,4]")[::order]:
            wraps(run, [rank], [f"weight float32{shape}"], FSDP)
    run.each(all_reduce(8))
    assert run.errors() == []


def test_other_groups() -> None:
    run = Run(4)
    run.new_group("1", (0, 1))
    run.new_group("2", (2, 3))
    wraps(run, [0, 1], HEADS, group="1")
    wraps(run, [2, 3], SWAPPED, group="2")
    run[0, 1].calls(all_reduce(8), group="1")
    run[2, 3].calls(all_reduce(8), group="2")
    assert run.errors() == []
