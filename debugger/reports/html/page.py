"""Writes the report of a run as one HTML file that needs no network and may be sent to others.

Everything in it that came from a rank is text: the template escapes what it is given, the data of
the script is JSON without a `<`, and the page's policy lets nothing run or load but its own script
and style, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...diagnosis.facts.last_heartbeat import as_it_was
from ...diagnosis.facts.waits import waits
from ...errors import UsageError
from ...hook.loading import dependency
from ...record.collection import no_collection
from ...record.exits import ExitLog
from ...record.kinds import Family, kind_of
from ...record.reading.records import Records, newest_ranks
from ...record.requests.supervision import is_live
from ...record.runs.run_directory import RunDirectory, read_object
from ...record.safe_files import finite, replacing
from ...record.snapshot import Rank, Snapshot
from ...record.wording import counted, ranks_text, spans
from .. import off, planned, table, text
from ..stored import check_replaceable
from . import calls, contents

_HERE = Path(__file__).parent
_FIRST = '<!doctype html>\n<html lang="en" data-made-by="distdebug">'
"""The first lines of a page of ours: nothing else is ever replaced by one."""


def check(path: Path) -> None:
    """Raises UsageError where the file cannot be written, or is there and none of ours."""
    check_replaceable(
        path, "--html", _FIRST, fails="written", foreign="is no report of distdebug's"
    )


def write(directory: RunDirectory, document: Mapping[str, Any], path: Path) -> int:
    """Writes the page, whole or not at all; returns its bytes. Raises UsageError where it cannot be
    written, or the document is damaged."""
    check(path)
    made = rendered(directory, document).encode("utf-8", "backslashreplace")
    try:
        with replacing(path, 0o666) as file:
            file.write(made)
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written: {error.strerror}") from error
    return len(made)


@no_collection()
def rendered(directory: RunDirectory, document: Mapping[str, Any]) -> str:
    """Returns the page of this run, whose report is `document`."""
    run = read_object(directory.run_json)
    records = Records(directory.ranks)
    records.look()
    # A command may have started several worlds, one after the other: the newest counts.
    worlds = records.snapshots(finished=False)[-1:]
    ranks = newest_ranks(worlds)
    made = calls.read(ranks)
    rows = calls.classes(document, ranks, made)
    verdict = text.verdict_of(document) if document["outcome"] != "ok" else None
    exits = ExitLog(directory.exits)
    exits.poll()
    reported, plan = directory.report_json.exists(), planned.is_plan(document)
    now_ns = worlds[-1].taken_ns if worlds and is_live(directory.path) and not reported else 0
    # A launcher sees late that a rank has died: of those its own record is nearer to the truth.
    died = verdict["culprits"] if verdict and kind_of(verdict["kind"]).ends_culprits else ()
    ends = {
        number: _end_ns(exits, rank, now_ns) for number, rank in ranks.items() if number not in died
    }
    lines = calls.Timeline(ranks, made, verdict, ends, plan)
    culprits = verdict["culprits"] if verdict else []
    dumps = document.get("source") == "flight_recorder"
    stopped = reported and not (plan or dumps)
    # Calls that differ keep ranks waiting although all have entered them: the verdict tells that.
    differ = verdict is not None and kind_of(verdict["kind"]).family is Family.MISMATCH
    waiting = contents.waits_then(verdict, rows)
    waiting = waiting if stopped or differ else _waits(worlds, exits)
    first = [*culprits[:8], *(row.ranks[0] for row in rows[:8])]
    jinja2 = dependency("jinja2")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(_HERE),
    )
    environment.filters.update(ranks=ranks_text, spans=spans)
    script, style = ((_HERE / name).read_text("utf-8") for name in ("page.js", "page.css"))
    given = {
        "first": _FIRST,
        "script": script,
        "style": style,
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'",
        "version": __version__,
        "report": document,
        "verdict": verdict,
        "title": _title(document, verdict),
        "terminal": text.render(document, width=text.WIDTH),
        "shown": _shown(document, verdict),
        "notes": _notes(document),
        "classes": rows,
        "waits": waiting,
        "drawing": contents.drawing(waiting, rows),
        "waits_then": stopped,
        "timeline": lines.as_json(rows) if lines.meetings else None,
        "around": lines.around(rows),
        "stacks": contents.stacks(directory),
        "logs": contents.logs(directory, first, ranks or map(int, document["ranks"])),
        "curves": contents.curves(directory, culprits, len(document["ranks"])),
        "surroundings": contents.surroundings(run, ranks),
        "hosts": contents.hosts(document),
        "began": _moment(run.get("started_ns")),
    }
    try:
        return str(environment.get_template("page.html").render(given))
    except jinja2.TemplateError as error:
        raise ValueError(error) from error


def _waits(worlds: Sequence[Snapshot], exits: ExitLog) -> list[contents.WaitRow]:
    """Returns the waits that the records say last, of a run that has no report yet."""
    return [row for world in worlds for row in contents.waits_now(waits(as_it_was(world, exits)))]


def _end_ns(exits: ExitLog, rank: Rank, now_ns: int) -> int:
    """Until when the rank's process ran: as its parent saw it end, or `now_ns`."""
    status = exits.find(rank.pid, rank.started_ns)
    return status.time_ns if status is not None else now_ns


def _title(document: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """The first word, the sentence beside it, and how grave it is."""
    outcome = str(document["outcome"])
    if outcome == "ok":
        warnings = len(document["findings"])
        more = f", with {counted(warnings, 'warning')}" if warnings else ": nothing was found wrong"
        return "OK", f"The run is in order{more}.", "good"
    if verdict is not None:
        grave = "bad" if verdict["severity"] == "error" else "warn"
        return verdict["title"], verdict["headline"], grave
    sentence = {
        "running": "The run goes on, and nothing is wrong so far.",
        "interrupted": "The run was interrupted; where each rank was stands below.",
        "failed": "The program failed, and no cause was found among the ranks.",
        "unwatched": "The program succeeded, but no rank was seen: nothing was observed.",
        "tool_error": "distdebug itself failed; the program is not to blame.",
    }.get(outcome, "Where each rank was stands below.")
    return outcome.upper().replace("_", " "), sentence, "good" if outcome == "running" else "warn"


def _shown(document: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> table.FindingTable:
    if verdict is not None:
        return table.of_whole_finding(verdict, document["ranks"])
    return table.FindingTable(table.of_ranks(document["ranks"], document["world_size"]), ())


def _notes(document: Mapping[str, Any]) -> list[str]:
    notes = [*off.sentences(document), *document.get("notes", ())]
    notes += [word + sentence for word, sentence in planned.notices(document)]
    return [*notes, *planned.last_lines(document)]


def _hash(part: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}"


def _moment(time_ns: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(finite(time_ns) / 1e9))
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
