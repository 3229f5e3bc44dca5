"""`distdebug report`: shows what was found in a run, in any of the report's forms."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from . import flags
from .base import Command, add_run_argument
from .flags import add_link_flags, link_of
from .rendering import add_form_arguments, rendered, written_as_html

if TYPE_CHECKING:
    from ..record.runs.run_directory import RunDirectory
    from ..reports.stored import Document

SCHEMA_FILE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "report.schema.json"
EXIT_BAD_INPUT = 2
EXIT_TOOL_ERROR = 96


class ReportCommand(Command):
    name = "report"
    epilog = (
        "A run without a report, because it still runs or was killed, is diagnosed on the spot.\n"
        "\n"
        "examples:\n"
        "  distdebug report\n"
        "  distdebug report 20260310-141502-7f3a --json | jq .findings[0].culprits\n"
        "  distdebug report --junit > junit.xml\n"
        "  distdebug report --calls 17 --group tp\n"
        "  distdebug report --html report.html            # one file, to look at and to share\n"
        "  distdebug report --traffic --bandwidth-gbs 50\n"
        "  distdebug report 20260310-141502-7f3a.distdebug.tar.gz\n"
        "  distdebug report ~/.cache/torch --exit-code    # dumps of torch's flight recorder"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser, "; or dumps of torch's flight recorder: a folder, or one file")
        parser.add_argument(
            "--exit-code",
            action="store_true",
            help="end with the exit code of the finding, for scripts",
        )
        parser.add_argument(
            "--traffic",
            action="store_true",
            help="print calls and bytes by group, op and step instead (--json: as JSON)",
        )
        parser.add_argument(
            "--replicas",
            action="store_true",
            help="print what was taken for a replica of what, how that is known, and what was left "
            "alone, instead",
        )
        parser.add_argument(
            "--calls",
            type=flags.seed,
            metavar="SEQ",
            help="print what each rank called before and after collective #SEQ instead",
        )
        parser.add_argument("--group", metavar="NAME", default="", help="with --calls: the group")
        parser.add_argument(
            "--around",
            type=flags.seed,
            metavar="N",
            default=3,
            help="with --calls: how many calls before and after it (3)",
        )
        parser.add_argument(
            "--schema", action="store_true", help="print the JSON Schema of report.json instead"
        )
        add_link_flags(parser)
        form = add_form_arguments(parser)
        form.add_argument(
            "--html",
            metavar="FILE",
            type=Path,
            help="write one HTML file to look at and to share: timeline, calls, stacks, logs",
        )
        form.add_argument(
            "--story",
            dest="form",
            action="store_const",
            const="story",
            help="print which rule made each finding, and what changed it afterwards",
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..foreign.dump_files import looks_like_dumps
        from .whole_job import opened_whole

        if args.schema:
            print(SCHEMA_FILE.read_text(encoding="utf-8"), end="")
            return 0
        if args.html is not None:
            from ..reports.html import page

            page.check(args.html)  # before anything takes its time
        if args.run is not None and looks_like_dumps(path := Path(args.run)):
            return self._show_dumps(path, args)
        if args.traffic:
            return self._show_traffic(args)
        if args.calls is not None:
            return self._show_calls(args)
        if args.replicas:
            return self._show_replicas(args)
        _check_that_something_is_there(args.run)
        with opened_whole(args.run) as directory:
            return self._show(directory, args)

    def _show_dumps(self, path: Path, args: argparse.Namespace) -> int:
        from ..record.runs.run_directory import RunDirectory
        from . import foreign_report

        if args.html is not None or args.traffic or args.calls is not None or args.replicas:
            with foreign_report.as_run(path) as run:
                if args.html is not None:
                    return self._show(RunDirectory.open(run), args, path)
                args.run = str(run)
                return self.run(args)
        found = foreign_report.judged(path)
        shown = rendered(found.document, args.form, path)
        return _tell(found.document, found.faults, shown, args.exit_code)

    @staticmethod
    def _show_traffic(args: argparse.Namespace) -> int:
        from ..plan import traffic
        from .compare import read

        if args.form in ("junit", "story") or args.html is not None:
            raise UsageError("--traffic is text or --json")
        found = traffic.traffic(read(args.run)[1], link_of(args))
        if args.form == "json":
            print(json.dumps(traffic.as_json(found), indent=2))
        else:
            print("\n".join(traffic.lines(found)))
        return 0

    @staticmethod
    def _show_replicas(args: argparse.Namespace) -> int:
        from ..reports import replicas
        from .base import newest_world
        from .whole_job import opened_whole

        with opened_whole(args.run) as directory:
            ranks, faults = newest_world(directory)
            print(*replicas.lines(ranks), sep="\n")
        for fault in faults:
            print(f"distdebug: {fault}", file=sys.stderr)
        return EXIT_BAD_INPUT if faults else 0

    @staticmethod
    def _show_calls(args: argparse.Namespace) -> int:
        from ..plan import around
        from .compare import read

        try:
            print(*around.lines(read(args.run)[1], args.calls, args.around, args.group), sep="\n")
        except LookupError as error:
            raise UsageError(str(error.args[0])) from None
        return 0

    def _show(
        self, directory: RunDirectory, args: argparse.Namespace, dumps: Path | None = None
    ) -> int:
        from ..record.safe_text import clean
        from ..reports import stored

        report = stored.load(directory.report_json)
        faults: Sequence[str] = ()
        if report is None:
            from ..supervisor import on_the_spot

            report, faults = on_the_spot.report(directory)
            faults = [directory.as_known(fault) for fault in faults]
            report["notes"] = [directory.as_known(note) for note in report["notes"]]
            _told_as_view(report, directory)
            if faults and not report["ranks"]:
                raise UsageError(faults[0])
        else:
            # It may have been copied from elsewhere: the evidence is where it was found.
            report["run_dir"] = clean(str(dumps or directory.path))
        if directory.packed is not None:
            report.update(run_dir=clean(str(directory.packed)), packed=True)
        if args.html is None:
            shown = rendered(report, args.form, directory.report_json)
        else:
            shown = written_as_html(directory, report, args.html)
        return _tell(report, faults, shown, args.exit_code)


def _check_that_something_is_there(run: str | None) -> None:
    """Raises UsageError of a folder that is neither kind of what can be reported."""
    from ..record.runs.run_directory import nearest, runs_in

    if run is None or not os.path.isdir(run) or os.path.exists(nearest() / run / "run.json"):
        return
    if not (os.path.exists(os.path.join(run, "run.json")) or runs_in(Path(run))):
        from ..foreign.dump_files import packed_in

        packed = packed_in(Path(run))
        raise UsageError(
            f"{run} holds neither a run of distdebug (there is no run.json in it) nor a dump of "
            f"torch's flight recorder{packed and f'; {packed}'}"
        )


def _told_as_view(report: Document, directory: RunDirectory) -> None:
    """Tells that what is seen of all nodes from one of them is kept there while somebody looks, no
    longer."""
    from ..record.runs import job_view

    node = job_view.node_of_view(directory.path)
    if node is not None:
        report["run_dir"] = str(node)
        head = job_view.head_of(node)
        report["notes"].append(
            f"this is what the head ({head}) has on record now; when the run has ended, the report "
            "of all nodes is there and here, and their logs and stacks are there"
        )


def _tell(report: Document, faults: Sequence[str], shown: str, exit_code: bool) -> int:
    """Prints the report and the faults, and returns the exit code. What was found counts, whatever
    else could not be read. Where nothing was found, that is no "in order" beside something that
    could not be read."""
    sys.stdout.write(shown)
    for fault in faults:
        print(f"distdebug: {fault}", file=sys.stderr)
    code = report.get("exit_code") if exit_code else 0
    if not isinstance(code, int) or not 0 <= code <= 255:
        code = EXIT_TOOL_ERROR  # a report.json may come from anywhere
    return EXIT_BAD_INPUT if faults and not code else code
