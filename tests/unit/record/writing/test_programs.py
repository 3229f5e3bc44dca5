"""What a planned rank does, as several threads of it write it down."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from distdebug.plan.program import Made, read_programs
from distdebug.record.layout import Definition
from distdebug.record.ops import OP_CODES
from distdebug.record.signature import Signature, agreement_hash
from distdebug.record.writing.program_writer import ProgramWriter, program_path
from distdebug.record.writing.slots import CallDescription, CallOrigin

SIGNATURE = Signature("all_reduce", (("float32", (4,)),), reduce_op="sum")


class Overtaken(ProgramWriter):
    """A second thread makes the same call, in its own group, while the first describes it."""

    second: threading.Thread

    def put(self, *row: Any) -> None:
        if row[0] == "kind" and not self.second.ident:
            self.second.start()
            self.second.join(timeout=0.5)  # it comes to its end here, unless it waits for this one
        super().put(*row)


def test_threads_that_make_the_first_call_of_its_kind_together(tmp_path: Path) -> None:
    path = program_path(tmp_path, 0)
    path.parent.mkdir()
    writer = Overtaken(path)
    writer.claim(0, 2, 0, 0)
    about = {"incarnation": 0, "desc": "g", "ranks": [0, 1], "backend": "gloo", "timeout_s": 60.0}
    groups = [writer.add_group({"name": name, **about}) for name in ("1", "2")]
    number = writer.define(Definition.SIGNATURE, SIGNATURE.to_json())
    agree = agreement_hash(SIGNATURE)
    code = OP_CODES[SIGNATURE.op]

    def call(index: int) -> None:
        group = groups[index]
        assert group is not None
        description = CallDescription(code, number, agree, agree, 0, None, None)
        writer.finish(*writer.begin(group, description, CallOrigin(0), 0))

    writer.second = threading.Thread(target=call, args=(1,))
    call(0)
    writer.second.join()
    made, end = read_programs(tmp_path)[0].events[:-1], read_programs(tmp_path)[0].events[-1]
    assert sorted(one.call.group[0] for one in made if isinstance(one, Made)) == ["1", "2"], made
    assert "damaged" not in str(end)
