"""Renders a report document for GitHub Actions: annotations at lines of code, and a job summary."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..record.wording import ranks_text
from . import table, text

MOST_OF_A_LEVEL = 10
"""GitHub drops further errors, or warnings, of one step."""
SUMMARY_BYTES = 1 << 19
"""GitHub shows none of a summary above 1 MiB, which all of a step's commands share."""


def annotated(document: Mapping[str, Any], workspace: str) -> list[str]:
    """Returns a workflow command, a line without its end, for each finding and each line of code at
    which its culprits stand; one without a line for a failure that has none.

    Files below the directory `workspace` are named relative to it. Others are not in the
    repository, where GitHub could show them: they are named in the message alone.
    """
    found: dict[str, list[str]] = {"error": [], "warning": []}
    verdict = text.verdict_of(document)
    others = [one for one in document["findings"] if one is not verdict]
    for finding in [verdict, *others] if verdict is not None else others:
        failed = finding["severity"] == "error" or finding is verdict
        level = "error" if failed else "warning"
        found[level] += _of_finding(finding, document["ranks"], level, workspace)
    if document["exit_code"] and not found["error"]:
        first = text.render(document, width=0).splitlines()[0]
        title = f"distdebug: {document['outcome']}"
        found["error"].append(command("error", first, title=title))
    found["notice"] = list(_undecided(document, workspace))
    return [line for lines in found.values() for line in lines[:MOST_OF_A_LEVEL]]


def _undecided(document: Mapping[str, Any], workspace: str) -> Iterator[str]:
    for row in document.get("undecided") or ():
        message = f"undecided in the plan of {ranks_text(row['ranks'])}: {row['what']}"
        inside = _inside(row["file"], workspace)
        if inside is not None:
            title = "distdebug: undecided"
            yield command("notice", message, file=inside, line=str(row["line"]), title=title)


def command(name: str, message: str, **properties: str) -> str:
    """A workflow command: `::name key=value,key=value::message`, escaped by GitHub's rules."""
    pairs = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {pairs}::{_data(message)}" if pairs else f"::{name}::{_data(message)}"


def summary(document: Mapping[str, Any], footer: str = "") -> str:
    """The report as Markdown: a fenced block, which nothing in it can end."""
    body = text.render(document)
    if len(body.encode()) > SUMMARY_BYTES:
        body = body.encode()[:SUMMARY_BYTES].decode(errors="ignore") + "\n... (cut)\n"
    longest = max(map(len, re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"\n{fence}text\n{body}{fence}\n" + (f"\n{footer}\n" if footer else "")


def _of_finding(
    finding: Mapping[str, Any], standing: Mapping[str, Any], level: str, workspace: str
) -> Iterator[str]:
    places: dict[tuple[str, int], list[int]] = {}
    evidence = {**standing, **finding["ranks"]}
    for rank in finding["culprits"]:
        location = evidence.get(str(rank), {}).get("location")
        if location:
            places.setdefault((location["file"], location["line"]), []).append(rank)
    for (file, line), ranks in places.items():
        doing: dict[str, list[int]] = {}
        for rank in ranks:
            doing.setdefault(_doing(evidence[str(rank)]), []).append(rank)
        here = (f"{ranks_text(alike)} here: {where}" for where, alike in doing.items())
        message = "\n".join((finding["message"], *here))
        title = f"distdebug: {finding['kind']}, {ranks_text(ranks)}"
        inside = _inside(file, workspace)
        if inside is None:
            yield command(level, f"{message}\nat {file}:{line}", title=title)
        else:
            yield command(level, message, file=inside, line=str(line), title=title)
    if not places:
        who = f", {ranks_text(finding['culprits'])}" if finding["culprits"] else ""
        yield command(level, finding["message"], title=f"distdebug: {finding['kind']}{who}")


def _doing(one: Mapping[str, Any]) -> str:
    """Tells what a rank did at the line of the annotation."""
    where = f"{table.doing(one)} in {one['location']['function']}"
    if one["location"].get("through"):
        where += f", through {one['location']['through']}"
    if one.get("called_at"):
        where += f", called at {table.Places([one]).line(one['called_at'])}"
    return where


def _inside(file: str, workspace: str) -> str | None:
    """The file relative to the workspace, with `/`; None where it is not below it."""
    for base, path in (
        (os.path.abspath(workspace), os.path.abspath(file)),
        (os.path.realpath(workspace), os.path.realpath(file)),
    ):
        relative = os.path.relpath(path, base)
        if relative.split(os.sep, 1)[0] != os.pardir:
            return relative
    return None


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
