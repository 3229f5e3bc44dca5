"""A finding that ranks make themselves: put on record, it is the report's as well."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...errors.in_ranks import FindingRaised, error_of
from ...record.notes import OwnFindingNote
from ...record.wording import finding_line
from .recorder import GroupRecord, Recorder

ON_FINDING = "DISTDEBUG_ON_FINDING"
"""The variable for what becomes of the run at an error: "report" lets it go on, all else stops
it."""


class OwnFinding:
    """`kind` and `culprits` as in a report; `group` and `seq` tell the collective it is about (no
    `seq`: it is about a message). `victims` are by default all other ranks of the group, `headline`
    is the message without the calls of each rank, where it has one. `elsewhere`: the line that is
    put on record with it is wrong, not the collective's."""

    def __init__(
        self,
        group: GroupRecord,
        seq: int | None,
        kind: str,
        message: str,
        culprits: Sequence[int],
        victims: Sequence[int] | None = None,
        headline: str = "",
        elsewhere: bool = False,
    ) -> None:
        others = [rank for rank in group.ranks if rank not in culprits]
        self.kind = kind
        self.message = message
        self._note = OwnFindingNote(
            finding=kind,
            culprits=tuple(culprits),
            victims=tuple(others if victims is None else victims),
            group=(group.name, group.incarnation),
            seq=seq,
            headline=headline,
            elsewhere=elsewhere,
        )

    def __repr__(self) -> str:
        return f"<OwnFinding {self.kind}: {self.message}>"

    def put_on_record(self, recorder: Recorder, site: int) -> None:
        """The same finding may be on the record of several ranks."""
        recorder.note(self._note, self.message, site)

    def report(self, recorder: Recorder, site: int) -> None:
        """Put it on record, and raise it. Where the run goes on (`--on-finding report`) nothing is
        raised, and of each kind the first one on a line is recorded: a NaN comes again in every
        step."""
        if os.environ.get(ON_FINDING) != "report":
            self.put_on_record(recorder, site)
            raise self.raised()
        if (self.kind, site) not in recorder.reported:
            recorder.reported.add((self.kind, site))
            self.put_on_record(recorder, site)

    def raised(self, besides: str = "") -> FindingRaised:
        """The error, once it is on record; `besides`: what is to stand in its text as well."""
        line = finding_line(self.kind, self.message)
        return error_of(self.kind, f"{line}\n{besides}" if besides else line, own=True)
