"""Drives Debian's chromium over its debugging pipe: opens a page, clicks, types, looks, prints.

The messages are those of the DevTools protocol, each JSON with a NUL behind it, on descriptors 3
(to the browser) and 4 (from it): no port, no driver, no package.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
LIMIT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root, too
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)
_CODES = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One page of a browser. `problems` are what its console and its policy complained of, and
    what it asked the network for."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest = to, back, b""
        self._numbers = itertools.count(1)
        self._session = ""
        self.problems: list[str] = []
        targets = self._ask("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        asked = {"targetId": target, "flatten": True}
        self._session = self._ask("Target.attachToTarget", asked)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path, size: tuple[int, int] = (1440, 900), *, dark: bool = False) -> None:
        """Opens the file, and waits until its script has drawn."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._ask("Page.navigate", {"url": path.absolute().as_uri()})
        self.until("document.readyState === 'complete'")
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, script: str) -> Any:
        """Returns the value of an expression; a promise is waited for."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        told = self._ask("Runtime.evaluate", asked)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never became true: {condition}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """Returns what a reader sees of the first such element."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def click(self, selector: str) -> None:
        """Clicks with the mouse at the middle of the first such element."""
        self.point(selector, 0.5)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, button="left", clickCount=1)

    def point(self, selector: str, at: float) -> None:
        """Moves the mouse over the element, to that share of its width."""
        script = f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: "center"}});
            const box = one.getBoundingClientRect();
            return [box.left + box.width * {at}, box.top + box.height / 2];
        }})()"""
        self._at = self.evaluate(script)
        self._mouse("mouseMoved")

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        asked = {"key": key, "windowsVirtualKeyCode": _CODES.get(key, ord(key[0].upper())), **text}
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **asked})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        told = self._ask("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(told["data"]))

    def print(self, path: Path) -> None:
        """Prints the page into a PDF."""
        path.write_bytes(base64.b64decode(self._ask("Page.printToPDF")["data"]))

    def _mouse(self, kind: str, **more: Any) -> None:
        x, y = self._at
        self._ask("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def _ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            told = self._next(deadline)
            if told.get("id") == number:
                assert "error" not in told, (method, told)
                found: dict[str, Any] = told["result"]
                return found
            self._hear(told)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._back, 1 << 16)
            assert received, "the browser has ended"
            self._rest += received
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def _hear(self, told: dict[str, Any]) -> None:
        method, given = told.get("method"), told.get("params", {})
        if method == "Log.entryAdded":
            self.problems.append(given["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.problems.append(json.dumps(given)[:500])
        elif method == "Network.requestWillBeSent":
            url = given["request"]["url"]
            if not url.startswith("file:"):
                self.problems.append(f"asked for {url}")


@contextmanager
def browser(scratch: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below `scratch`."""
    assert CHROMIUM is not None
    theirs, to = os.pipe()
    back, theirs_back = os.pipe()
    # A shell puts the pipes where the browser looks for them: descriptors 3 and 4 may be ours here.
    command = f'exec "$0" "$@" 3<&{theirs} 4>&{theirs_back}'
    arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={scratch / 'profile'}", "about:blank"]
    with open(scratch / "browser.log", "wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command, *arguments],
            pass_fds=(theirs, theirs_back),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(theirs)
    os.close(theirs_back)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)  # its end: it closes by itself
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(back)
