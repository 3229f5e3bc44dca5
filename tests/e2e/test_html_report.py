"""The HTML report in a real browser: what is seen and clicked, at two sizes, in the dark and on
paper; that nothing in it breaks its policy, and that a rank's text stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdebug.cli import main
from fixtures import recorded
from fixtures.make_run import make
from tests.support.browser import Browser, browser, needs_chromium
from tests.unit.reports.test_html import HOSTILE, hostile

pytestmark = needs_chromium
WIDE, NARROW = (1440, 900), (390, 844)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(autouse=True)
def _no_problem(chromium: Browser) -> Iterator[None]:
    """Neither the console nor the policy has anything to say, and nothing is asked for."""
    chromium.problems.clear()
    yield
    assert chromium.problems == []


@pytest.fixture(scope="module")
def mismatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mismatch")
    recorded.unpack("mismatch", folder / "run")
    return page_of(folder / "run")


def page_of(run: Path) -> Path:
    target = run.with_suffix(".html")
    assert main(["report", str(run), "--html", str(target)]) == 0
    return target


def until_drawn(chromium: Browser, selector: str) -> None:
    """Waits until many pixels of a canvas have a colour: what is out of sight is drawn later."""
    chromium.until(
        f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            if (!one.width) return false;
            const pixels = one.getContext("2d").getImageData(0, 0, one.width, one.height).data;
            return pixels.filter((value, at) => at % 4 === 3 && value > 0).length > 200;
        }})()"""
    )


def test_a_report_opens_and_tells_its_verdict(
    chromium: Browser, mismatch: Path, tmp_path: Path
) -> None:
    chromium.open(mismatch, WIDE)
    assert chromium.text("header .kind") == "MISMATCH"
    assert "ranks disagree at collective #" in chromium.text("h1").lower()
    assert "look here" in chromium.text("#verdict tr.culprit")
    assert "waited for" in chromium.text("#waits")
    assert chromium.evaluate("document.querySelectorAll('#waits svg .arrow').length") == 1
    assert "≠" in chromium.text("#calls td.odd")
    chromium.evaluate("document.querySelector('#timeline').scrollIntoView()")
    until_drawn(chromium, ".row.culprit canvas")
    # What a call is stands below the rows as the mouse comes over it.
    chromium.click('[data-do="fault"]')
    chromium.point(".row.culprit canvas", 0.5)
    chromium.until("document.querySelector('#told').textContent.includes('differs')")
    assert chromium.text("#told").startswith("rank ")
    chromium.screenshot(tmp_path / "wide.png")
    assert (tmp_path / "wide.png").stat().st_size > 20_000


@pytest.mark.long
def test_rows_open_and_the_keyboard_moves(chromium: Browser, mismatch: Path) -> None:
    chromium.open(mismatch, WIDE)
    seen = "[...document.querySelectorAll('.row')].filter(one => one.offsetParent).length"
    before = chromium.evaluate(seen)
    chromium.click(".row [aria-expanded]")
    assert chromium.evaluate(seen) > before
    assert chromium.evaluate("document.querySelectorAll('.row [aria-expanded=true]').length") == 1
    until_drawn(chromium, ".row.member canvas")
    ticks = chromium.text("#axis")
    chromium.press("+")
    chromium.press("+")
    chromium.until(f"document.querySelector('#axis').innerText !== {json.dumps(ticks)}")
    chromium.press("0")
    chromium.until(f"document.querySelector('#axis').innerText === {json.dumps(ticks)}")
    chromium.press("n")
    first = chromium.text("#told")
    assert "after the first call" in first
    chromium.press("n")
    assert chromium.text("#told") != first
    chromium.press("p")
    assert chromium.text("#told") == first
    chromium.press("Enter")  # on the row's button, which has the focus
    assert chromium.evaluate(seen) == before
    chromium.evaluate("document.querySelector('#find').value = '1'")
    chromium.evaluate("document.querySelector('#find').dispatchEvent(new Event('change'))")
    assert chromium.text(".row.found button").endswith("rank 1")


@pytest.mark.long
def test_stacks_fold_and_show_frames_of_others_when_asked(
    chromium: Browser, mismatch: Path
) -> None:
    chromium.open(mismatch, WIDE)
    assert "distributed_c10d.py" not in chromium.text("#stacks")
    chromium.click('[data-do="quiet"]')
    assert "distributed_c10d.py" in chromium.text("#stacks")
    chromium.click("#stacks summary")
    assert "distributed_c10d.py" not in chromium.text("#stacks")


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["mismatch", "deadlock", "straggler", "exception"])
def test_every_size_and_scheme_can_be_read(
    chromium: Browser, tmp_path: Path, name: str, size: tuple[int, int], dark: bool
) -> None:
    recorded.unpack(name, tmp_path / "run")
    chromium.open(page_of(tmp_path / "run"), size, dark=dark)
    width = chromium.evaluate("document.documentElement.scrollWidth")
    assert width == size[0]  # nothing makes the page itself scroll sideways
    ground = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 18, 22)") is dark
    assert chromium.evaluate(CONTRAST) == []
    chromium.screenshot(tmp_path / "seen.png", whole=True)
    assert (tmp_path / "seen.png").stat().st_size > 20_000


CONTRAST = """(() => {
    // Texts whose contrast with what is behind them is less than WCAG's 4.5.
    const parts = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (text) => {
        const [r, g, b] = parts(text).map((one) => one / 255)
            .map((one) => one <= 0.04 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    for (const one of document.querySelectorAll("body *:not(svg *):not(script)")) {
        const texts = [...one.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
        if (!one.offsetParent || !texts.length) continue;
        let behind = one, colour;
        do {
            colour = getComputedStyle(behind).backgroundColor;
            behind = behind.parentElement;
        } while (behind && parts(colour)[3] === 0);
        const [a, b] = [light(getComputedStyle(one).color), light(colour)].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) found.push([one.className, one.innerText.slice(0, 40)]);
    }
    return found;
})()"""


@pytest.mark.long
def test_paper_has_what_is_folded_on_the_screen(
    chromium: Browser, mismatch: Path, tmp_path: Path
) -> None:
    chromium.open(mismatch, WIDE)
    chromium.print(tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    assert chromium.evaluate("document.querySelector('#verdict details').open") is False
    chromium.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert chromium.evaluate("document.querySelector('#verdict details').open") is True


@pytest.mark.long
def test_a_ranks_script_does_not_run(chromium: Browser, tmp_path: Path) -> None:
    directory, document = hostile(tmp_path)
    directory.write_json("report.json", document)
    chromium.open(page_of(directory.path), WIDE)
    assert HOSTILE in chromium.text("h1")
    assert HOSTILE in chromium.text("#logs")
    assert chromium.evaluate("document.scripts.length") == 2
    assert chromium.evaluate("document.images.length") == 0
    # What somebody would add by hand does not run either.
    chromium.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = 1'}))"
    )
    assert chromium.evaluate("document.title") != "1"
    (refused,) = chromium.problems
    assert "Content Security Policy" in refused
    chromium.problems.clear()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_thousand_ranks_open_and_close(chromium: Browser, tmp_path: Path) -> None:
    make(tmp_path / "run", "mismatch", 1024)
    chromium.open(page_of(tmp_path / "run"), WIDE)
    chromium.click('[data-do="open"]')
    chromium.until("document.querySelectorAll('.row.member').length >= 1023")
    in_memory = "[...document.querySelectorAll('.row canvas')].filter(one => one.width > 0).length"
    chromium.until(f"{in_memory} < 200")
    chromium.evaluate("document.querySelector('#rows').scrollTop = 12000")
    chromium.until(
        "[...document.querySelectorAll('.row canvas')].some(one => one.width > 300 &&"
        " one.getBoundingClientRect().top > 0 && one.row.rank > 300)"
    )
