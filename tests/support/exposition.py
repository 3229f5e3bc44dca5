"""A strict reader of Prometheus' text format, by its specification: whatever is not allowed fails.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|Inf|NaN)", re.IGNORECASE)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Metric:
    """One metric, with its samples by labels (sorted by name)."""

    kind: str
    samples: dict[Labels, float] = field(default_factory=dict)

    def of(self, **labels: str) -> float:
        """The one sample that has at least these labels."""
        wanted = set(labels.items())
        (value,) = [value for key, value in self.samples.items() if wanted <= set(key)]
        return value


def parse(text: str) -> dict[str, Metric]:
    """All metrics of the text. Raises AssertionError where the format does not allow it."""
    assert text.endswith("\n"), "the last line must end with a line feed"
    found: dict[str, Metric] = {}
    helped: set[str] = set()
    current = ""
    for line in text[:-1].split("\n"):
        assert line, "an empty line"
        if line.startswith("# HELP "):
            match = _HELP.fullmatch(line)
            assert match is not None, line
            assert match[1] not in helped, f"twice: {line}"
            helped.add(match[1])
            current = match[1]
        elif line.startswith("# TYPE "):
            match = _TYPE.fullmatch(line)
            assert match is not None, line
            assert match[1] not in found, f"twice: {line}"
            assert match[1] == current, f"HELP is of {current}: {line}"
            found[match[1]] = Metric(match[2])
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            name, labels, number = match.groups()
            assert name == current, f"outside its metric: {line}"
            assert name in found, f"without a type: {line}"
            assert _NUMBER.fullmatch(number), line
            key = _labels(labels or "", line)
            assert key not in found[name].samples, f"twice: {line}"
            found[name].samples[key] = float(number)
            if found[name].kind == "counter":
                assert name.endswith("_total"), line
                assert float(number) >= 0, line
    return found


def _labels(text: str, line: str) -> Labels:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match is not None, line
        assert match[1] not in found, f"twice: {line}"
        found[match[1]] = re.sub(r'\\[\\"n]', lambda one: _ESCAPES[one[0]], match[2])
        at = match.end()
        assert at == len(text) or text[at] == ",", line
        at += 1
    return tuple(sorted(found.items()))
