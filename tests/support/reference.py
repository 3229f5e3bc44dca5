"""Writes those pages of the reference that are made from the code.

Run it by `python -m tests.support.reference`. The flags come from the parsers, the kinds from their
records, the Python API from its docstrings, and the fields of report.json from its schema.
`tests/unit/test_reference.py` fails where a page is not what this would write.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import distdebug
from distdebug import errors, faults
from distdebug.commands import COMMANDS, load
from distdebug.errors import in_ranks
from distdebug.record.kinds import KINDS, page_of

PAGES = Path(__file__).resolve().parents[2] / "debugger" / "docs" / "reference"
SCHEMA = json.loads((PAGES / "report.schema.json").read_text())
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
CODES: dict[int | str, str] = {
    0: "nothing is wrong. Warnings do not change this, unless `--strict` is given",
    1: "the program failed by itself; `--strict`: a warning without a code of its own; `compare`: "
    "the runs differ",
    2: "the command line is wrong, no rank was seen, or an injected fault never happened",
    91: "calls of the ranks do not match. If the shapes differ and the number of elements does "
    "not, it is only a warning, unless `--debug-level DETAIL` is given",
    92: "deadlock: ranks wait for each other in a cycle",
    93: "other ranks wait for a rank that is late, has left, or never came; or nothing "
    "moves at all",
    94: "a rank or a node died",
    95: "the data are wrong (found by `--check`)",
    96: "distdebug itself failed",
    130: "somebody pressed Ctrl-C",
    141: "nobody reads the output any more, as in `distdebug logs \\| head`",
    "128 + N": "the run was ended by signal N: 143 by SIGTERM, 137 by SIGKILL",
}


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    made = {
        "command-line": _command_line,
        "exit-codes": _exit_codes,
        "python": _python,
        "report-json": _report_json,
    }
    return {f"{name}.md": "\n".join(lines()).rstrip() + "\n" for name, lines in made.items()}


def _command_line() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "`distdebug COMMAND --help` prints the same. `distdebug --version` prints the version."
    of_run: set[tuple[str, str]] = set()
    for name, does in COMMANDS.items():
        shown = of_run if name in ("run", "demo", "exec", "replay") else set()
        yield from _command(f"distdebug {name}", load(name).parser(), does, shown)


def _command(
    name: str, parser: argparse.ArgumentParser, does: str, shown: set[tuple[str, str]]
) -> Iterator[str]:
    """`shown`: rows that stand in the table of `distdebug run`; later commands name them only."""
    yield from ("", f"## {name}", "", does[:1].upper() + does[1:].rstrip(".") + ".", "")
    formatter = parser._get_formatter()
    rows, inner = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = dict(action.choices)
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            names = ", ".join(action.option_strings) or formatter._format_args(action, "")
            value = "" if not action.option_strings else formatter._format_args(
                action, formatter._get_default_metavar_for_optional(action)
            )  # fmt: skip
            told = formatter._expand_help(action) if action.help else ""
            rows.append((f"{names} {value}".strip(), " ".join(told.split())))
    if same := ", ".join(f"`{flag.split()[0]}`" for flag, told in rows if (flag, told) in shown):
        yield f"These flags mean the same as for [`distdebug run`](#distdebug-run): {same}."
    rows = [row for row in rows if row not in shown]
    shown.update(rows)
    if same and rows:
        yield ""
    if rows:
        yield from ("| flag | meaning |", "|---|---|")
        yield from (f"| `{_cell(flag)}` | {_cell(told)} |" for flag, told in rows)
    if parser.epilog and "examples:" in parser.epilog:
        yield from ("", "```text", *_examples(parser.epilog), "```")
    for word, one in inner.items():
        yield from _command(f"{name} {word}", one, one.description or word, set())


def _examples(epilog: str) -> list[str]:
    lines = epilog.partition("examples:\n")[2].splitlines()
    shown = [line[2:] for line in lines if line.startswith("  ")]
    return shown or lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _exit_codes() -> Iterator[str]:
    yield from ("# Exit codes and kinds", "", "| code | meaning |", "|--:|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in CODES.items())
    yield ""
    yield "If the program fails and distdebug finds nothing, the exit code is 1."
    yield from ("", "## Kinds of findings", "")
    yield "A finding is a fault or a warning. `distdebug explain KIND` prints the page of its kind."
    yield from ("", "| kind | what happened | title in a report | code |", "|---|---|---|--:|")
    for name, kind in KINDS.items():
        first = Path(page_of(name)).read_text().partition("\n")[0].partition(": ")[2]
        link = f"[`{name}`](../kinds/{name}.md)"
        yield f"| {link} | {first} | {kind.title} | {kind.exit_code} |"


def _python() -> Iterator[str]:
    yield "# Python API"
    yield ""
    yield "```python\nimport distdebug\n```"
    yield ""
    yield "A program below `distdebug run` or `exec` can use these functions; it does not have to."
    names = ("install", "precheck", "step", "log", "breakpoint", "inject", "monitored_barrier")
    for name in (*names, "replicated", "not_replicated"):
        yield from _documented(f"distdebug.{name}", getattr(distdebug, name))
    yield from ("", "## Errors", "")
    yield "What a rank raises can be caught by these names (`except distdebug.MismatchError`)."
    shown = [getattr(in_ranks, name) for name in in_ranks.__all__]
    for one in [*filter(inspect.isclass, shown), errors.UsageError]:
        bases = ", ".join(f"`{base.__name__}`" for base in one.__bases__)
        yield from ("", f"### {one.__name__}", "", f"Derives from {bases}.", "", _told(one))
    yield from ("", "## distdebug.faults", "", _told(faults))
    for name in ("parse", "read_file", "draw"):
        yield from _documented(f"distdebug.faults.{name}", getattr(faults, name), "###")


def _documented(name: str, found: Any, level: str = "##") -> Iterator[str]:
    takes = str(inspect.signature(found)).replace("'", "") if inspect.isroutine(found) else ""
    yield from ("", f"{level} {name}", "")
    if takes:
        yield from ("```text", f"{name}{takes}", "```", "")
    yield _told(found)


def _told(found: Any) -> str:
    return inspect.getdoc(found) or ""


def _report_json() -> Iterator[str]:
    schema = SCHEMA
    yield from ("# report.json", "", schema["description"], "")
    yield "`distdebug report --json` prints it, and `distdebug report --schema` its JSON Schema."
    yield "Fields may be added. Within one version of the schema no field changes its meaning."
    yield from _fields("The report", schema)
    for name, one in schema["$defs"].items():
        yield from _fields(name, one)


def _fields(title: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## {title}", "", schema["title"], "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, one in schema["properties"].items():
        kind = one.get("type") or one.get("$ref", "").rpartition("/")[2]
        if "items" in one:
            inner = one["items"].get("type") or one["items"].get("$ref", "").rpartition("/")[2]
            kind = f"array of {inner}"
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        yield f"| `{name}` | {kind} | {_cell(one['description'])} |"


def check(value: Any, schema: Mapping[str, Any] | None = None, place: str = "report") -> None:
    """A report fits its schema, as far as that goes. Fails with the place of what does not."""
    schema = SCHEMA if schema is None else schema
    if "anyOf" in schema:
        if value is None:
            return
        schema = schema["anyOf"][0]
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, TYPES[kind]) for kind in kinds), f"{place}: {value!r}"
    if isinstance(value, list) and "items" in schema:
        for one in value:
            check(one, schema["items"], f"{place}[]")
    if isinstance(value, dict) and "properties" in schema:
        assert value.keys() <= schema["properties"].keys(), place
        assert set(schema.get("required", ())) <= value.keys(), place
        for name, one in value.items():
            check(one, schema["properties"][name], f"{place}.{name}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for name, one in value.items():
            check(one, schema["additionalProperties"], f"{place}.{name}")


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
