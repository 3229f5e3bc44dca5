"""Reads execution traces as PARAM's comm_replay does: what it would look up must be there.

By et_replay/execution_trace.py and et_replay/comm/commsTraceParser.py of facebookresearch/param.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DTYPES = {
    "Tensor(int)",
    "Tensor(float)",
    "Tensor(bool)",
    "Tensor(long int)",
    "Tensor(double)",
    "Tensor(c10::Half)",
    "Tensor(c10::BFloat16)",
    "Tensor(unsigned char)",
    "Tensor(signed char)",
}
_GENERAL = {"rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema"}
_OF_CALLS = {
    "collective_name",
    "dtype",
    "in_msg_nelems",
    "out_msg_nelems",
    "in_split_size",
    "out_split_size",
    "global_rank_start",
    "global_rank_stride",
    "pg_name",
    "pg_desc",
    "pg_size",
}
_WITHOUT_TENSORS = ("wait", "barrier")


@dataclass(frozen=True)
class Comm:
    """A call, or a wait, as PARAM would make it. Ranks are global; sizes in elements."""

    name: str
    group: int
    request: tuple[int, bool]
    ranks: tuple[int, ...]
    dtype: str = ""
    given: int = 0
    taken: int = 0
    peer: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One rank's. `groups`: how many there are; `members` of those that the rank is in."""

    groups: int
    members: dict[int, tuple[int, ...]]
    comms: list[Comm]


def load(path: Path) -> Trace:
    """The trace in the file. Raises AssertionError or KeyError where PARAM would fail."""
    found = json.loads(path.read_text())
    assert found["schema"] == "1.1.1-chakra.0.0.4"
    assert isinstance(found["pid"], int)
    nodes = found["nodes"]
    known = {node["id"] for node in nodes}
    assert len(known) == len(nodes)
    assert nodes[0]["id"] == 1
    for node in nodes:
        assert node["ctrl_deps"] in known
        names = {one["name"] for one in node["attrs"]}
        assert names >= _GENERAL | (_OF_CALLS if node["name"] == "record_param_comms" else set())
        for side in ("inputs", "outputs"):
            sizes = {len(node[side][what]) for what in ("values", "shapes", "types", "strides")}
            assert len(sizes) == 1, node
    (init,) = [node for node in nodes if "process_group:init" in node["name"]]
    groups = json.loads(init["inputs"]["values"][0])
    assert all(group["pg_name"].isdecimal() for group in groups)
    assert all({"pg_desc", "backend_config", "group_size"} <= group.keys() for group in groups)
    (count,) = {group["group_count"] for group in groups}
    members = {int(group["pg_name"]): tuple(group["ranks"]) for group in groups}
    calls = [node for node in nodes if node["name"] == "record_param_comms"]
    return Trace(count, members, [_comm(node, members) for node in calls])


def _comm(node: dict[str, Any], members: dict[int, tuple[int, ...]]) -> Comm:
    values, types = node["inputs"]["values"], node["inputs"]["types"]
    shift = 1 if any(word in values[:5] for word in _WITHOUT_TENSORS) else 0
    name = values[4 - shift]
    (sequence, is_p2p), (group, _) = values[1 - shift], values[2 - shift]
    ranks = members[int(group)]
    request = (sequence, is_p2p)
    if name in _WITHOUT_TENSORS:
        return Comm(name, int(group), request, ranks)
    dtype, given = _tensor(values[0], types[0])
    _, taken = _tensor(node["outputs"]["values"][0], node["outputs"]["types"][0])
    assert dtype in _DTYPES, dtype
    peer = ranks[values[3 - shift]] if name in ("send", "recv") else None
    sends, receives = tuple(values[5]), tuple(values[6])
    if sends:
        assert sum(sends) == given
        assert sum(receives) == taken
        assert len(sends) == len(receives) == len(ranks)
    return Comm(name, int(group), request, ranks, dtype, given, taken, peer, sends, receives)


def _tensor(values: list[Any], kind: str) -> tuple[str, int]:
    """A list of tensors: its dtype and elements."""
    assert kind.count("GenericList") == 1
    for one in values:
        assert len(one) == 6
    return kind.replace("GenericList[", "").replace("]", ""), sum(one[3] for one in values)
