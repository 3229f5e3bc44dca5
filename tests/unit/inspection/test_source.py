"""What the source around a line tells: numbers, the one message of a handle, groups of meshes."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.inspection.source import (
    Message,
    Place,
    group_members,
    groups_made,
    known_numbers,
    message_at,
)
from distdebug.supervisor.stacks.stacks import Frame

SIXTH_OF_EIGHT = Place(6, 8)


def frame_in(folder: Path, text: str, **local: str) -> Frame:
    """A frame that stands at the line of this program that is marked."""
    file = folder / f"train{len(list(folder.iterdir()))}.py"  # a source is read once
    file.write_text(text)
    line = next(at for at, row in enumerate(text.splitlines(), 1) if "# here" in row)
    return Frame("step", str(file), line, values=tuple(local.items()))


def known(folder: Path, text: str, **local: str) -> dict[str, str]:
    return known_numbers(frame_in(folder, text, **local), SIXTH_OF_EIGHT)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("rank = dist.get_rank()", "6"),
        ("size, rank = dist.get_world_size(), torch.distributed.get_rank()", "6"),
        ("rank = int(os.environ['RANK'])", "6"),
        ("rank = int(os.environ.get('RANK', 0))", "6"),
        ("if many:\n    rank = dist.get_rank()", "6"),
        ("rank = 3", "3"),
        ("rank = dist.get_rank(group)", None),
        ("rank = int(os.environ['LOCAL_RANK'])", None),
        ("rank = 0\nrank = dist.get_rank()", None),
        ("rank = 0\nfor rank in others: pass", None),
        ("rank = 0\nrank += 1", None),
        ("rank = True", None),
        ("rank = 0\ndef later():\n    global rank", None),
    ],
)
def test_what_a_module_calls_by_a_name(tmp_path: Path, given: str, value: str | None) -> None:
    found = known(tmp_path, f"{given}\ndef step():\n    pass  # here\n")
    assert found.get("rank") == value


def test_the_innermost_scope_counts(tmp_path: Path) -> None:
    inner = "def main():\n    {}\n    def step():\n        pass  # here\n"
    assert known(tmp_path, "rank = 3\n" + inner.format("rank = dist.get_rank()"))["rank"] == "6"
    assert "rank" not in known(tmp_path, "rank = 3\n" + inner.format("rank = chosen()"))
    of_another = "rank = 3\ndef other(rank): rank = 4\ndef step():\n    pass  # here\n"
    assert known(tmp_path, of_another)["rank"] == "3"
    as_argument = "rank = 3\ndef step(rank):\n    pass  # here\n"
    assert "rank" not in known(tmp_path, as_argument)
    assert known(tmp_path, as_argument, rank="5")["rank"] == "5"


def test_where_a_process_is_no_known_rank_its_rank_is_no_number(tmp_path: Path) -> None:
    frame = frame_in(tmp_path, "rank = dist.get_rank()\npass  # here\n")
    assert known_numbers(frame) == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["dist.irecv(x, src=rank - 1).wait()  # here"], Message("irecv", 5, 0)),
        (["dist.isend(x, (rank + 3) % size, tag=4).wait()  # here"], Message("isend", 1, 4)),
        (["work = dist.isend(x, 1)", "work.wait()  # here"], Message("isend", 1, 0)),
        (["for peer in others: dist.isend(x, peer).wait()  # here"], Message("isend", 2, 0)),
        (["for peer in others: work = dist.isend(x, peer)", "work.wait()  # here"], None),
        (["work = dist.isend(x, 1)", "work = dist.irecv(x, 2)", "work.wait()  # here"], None),
        (["for work in works: work.wait()  # here"], None),
        (["dist.irecv(x).wait()  # here"], None),
        (["dist.irecv(x, 1, group=pair).wait()  # here"], None),
        (["dist.irecv(x, 1, pair).wait()  # here"], None),
        (["dist.irecv(x, 1, tag=chosen()).wait()  # here"], Message("irecv", 1, None)),
        (["dist.irecv(x, 1).wait(); dist.isend(x, 1).wait()  # here"], None),
        (["self.work.wait()  # here"], None),
    ],
)
def test_the_message_of_a_handle(tmp_path: Path, lines: list[str], message: Message | None) -> None:
    body = "\n    ".join(lines)
    text = f"rank, size = dist.get_rank(), dist.get_world_size()\ndef step():\n    {body}\n"
    assert message_at(frame_in(tmp_path, text, peer="2"), SIXTH_OF_EIGHT) == message


MESH = 'mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))'


@pytest.mark.parametrize(
    ("made", "group", "members"),
    [
        ('g = mesh.get_group("tp")', "g", (4, 5, 6, 7)),
        ('g = mesh.get_group("dp")', "g", (2, 6)),
        ('g = mesh["dp"].get_group()', "g", (2, 6)),
        ('f, g = mesh.get_group("dp"), mesh.get_group(mesh_dim=1)', "g", (4, 5, 6, 7)),
        ('self.g = mesh.get_group("tp")', "self.g", (4, 5, 6, 7)),
        ("", 'mesh.get_group("dp")', (2, 6)),
        ("g = mesh.get_group()", "g", None),
        ("g = mesh.get_group(2)", "g", None),
        ('g = mesh.get_group("pp")', "g", None),
        ('g = mesh.get_group("dp")\ng = mesh.get_group("tp")', "g", None),
        ('g = other.get_group("dp")', "g", None),
        ("g = dist.new_group([6, 2])", "g", (2, 6)),
    ],
)
def test_the_group_of_a_dimension(
    tmp_path: Path, made: str, group: str, members: tuple[int, ...] | None
) -> None:
    """As torch lays out a mesh: row by row."""
    frame = frame_in(tmp_path, f"size = dist.get_world_size()\n{MESH}\n{made}\npass  # here\n")
    assert group_members(frame, group, SIXTH_OF_EIGHT) == members


def test_a_mesh_of_one_dimension_needs_no_name(tmp_path: Path) -> None:
    text = 'mesh = init_device_mesh("cpu", mesh_shape=(4,))\ng = mesh.get_group()\npass  # here\n'
    frame = frame_in(tmp_path, text)
    assert group_members(frame, "g", Place(2)) == (0, 1, 2, 3)
    assert group_members(frame, "g", Place(5)) is None
    assert group_members(frame, "g") is None


@pytest.mark.parametrize(
    ("making", "found"),
    [
        ("dist.new_group(mine)", {3: "[0, 1]"}),
        ("dist.new_group(ranks=mine, timeout=LIMIT)", {3: "[0, 1]"}),
        ("dist.new_group(mine, use_local_synchronization=True)", {}),
        ("dist.new_group([0, 1])", {}),
        ("dist.new_group(other)", {}),
        ("dist.new_subgroups(mine)", {}),
        ("[dist.new_group(mine) for mine in pairs]", {}),
        ("dist.new_group(mine)\n    mine = shard(mine)", {}),
    ],
)
def test_the_groups_that_a_function_has_made(
    tmp_path: Path, making: str, found: dict[int, str]
) -> None:
    later = "    dist.new_group(mine)\n"
    text = f"import x\ndef step(mine):\n    g = {making}\n    dist.barrier()  # here\n{later}"
    assert groups_made(frame_in(tmp_path, text, mine="[0, 1]")) == found
