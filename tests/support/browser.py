"""A real headless Chromium, spoken to over its debugging pipe: what a page logs, fetches, and shows."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_MADE = Path(__file__).parents[2] / ".browser" / "chromium"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def chromium() -> str:
    """Return the program that ``CONDUCTOR_CHROMIUM`` names, or ``make browser`` made, or that is installed."""
    named = [os.environ.get("CONDUCTOR_CHROMIUM") or str(_MADE), *_NAMES]
    found = next(filter(None, map(shutil.which, named)), None)
    if found is None:
        pytest.skip("no Chromium: make browser brings one, or CONDUCTOR_CHROMIUM names one")
    return found


class Page:
    """One tab.

    Attributes:
        requests: Addresses of all that it asked for, itself first.
        complaints: Warnings and errors of its console, and exceptions that nobody caught.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False

    def open(self, url: str, *, width: int, height: int = 900) -> None:
        """Show a page in a window of that size, and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tell("Page.navigate", url=url)
        self._browser.read_until(lambda: self.loaded)

    def tell(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        return self._browser.tell(method, session=self._session, **params)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < until, script
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page, not only of what the window shows of it."""
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.tell("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """Take in an event."""
        match method:
            case "Page.loadEventFired":
                self.loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"warning", "error", "assert"}:
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"warning", "error"}:
                self.complaints.append(str(params["entry"]))
            case _:
                pass


class Browser:
    """The program.

    Args:
        reads: Where its messages come from, each with a zero byte behind it; ``writes``: where ours go.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._rest = b""
        self._last = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def new_page(self) -> Page:
        """Open an empty tab."""
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._pages[session] = Page(self, session)
        return self._pages[session]

    def tell(self, method: str, *, session: str | None = None, **params: Any) -> Any:
        """Call a method of the protocol, and wait for what it returns."""
        self._last += 1
        number = self._last
        message = {"id": number, "method": method, "params": params}
        os.write(
            self._writes, json.dumps(message if session is None else {**message, "sessionId": session}).encode() + b"\0"
        )
        self.read_until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def read_until(self, done: Any) -> None:
        """Take in messages until ``done()``."""
        until = time.monotonic() + PATIENCE_S
        while not done():
            ready, _, _ = select.select([self._reads], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._reads, 1 << 20)
            assert data, "the browser has ended"
            *messages, self._rest = (self._rest + data).split(b"\0")
            for message in map(json.loads, messages):
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.heard(message["method"], message["params"])


@contextmanager
def open_browser(folder: Path) -> Generator[Browser]:
    """Start a browser with a profile of its own in ``folder``; it is gone when the block ends."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [chromium(), *_FLAGS, f"--user-data-dir={folder}"]
    # it reads from descriptor 3 and writes to 4
    shell = ["sh", "-c", f'exec "$@" 3</proc/self/fd/{theirs_in} 4>/proc/self/fd/{theirs_out}', "sh", *command]
    with subprocess.Popen(shell, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            os.close(theirs_in)
            os.close(theirs_out)
            yield Browser(ours_in, ours_out)
        finally:
            os.close(ours_out)  # it ends with its pipe
            os.close(ours_in)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
