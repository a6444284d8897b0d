"""A headless Chromium, steered over its DevTools protocol: pages, scripts, pictures, and each address it asks for."""

from __future__ import annotations

import base64
import contextlib
import importlib.resources
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

SIZES = {"phone": (390, 844), "laptop": (1366, 768), "wall": (2560, 1440)}
NAVIGATED = "Inspected target navigated or closed"
AXE = Path(str(importlib.resources.files("axe_core_python"))) / "axe.min.js"


class Navigated(Exception):
    """The page was replaced by another while a script ran in it."""


class Browser:
    """One page. ``requested``: all addresses that it has asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self.requested: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """The result of one command. Raises AssertionError with the browser's own error."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("id") == number:
                if message.get("error", {}).get("message") == NAVIGATED:
                    raise Navigated
                assert "error" not in message, message["error"]
                return dict(message["result"])

    def go(self, url: str) -> None:
        """Open an address and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def script(self, expression: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited)."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> Any:
        """The first true value of a JavaScript expression, True for an object; one that throws counts as false."""
        end = time.monotonic() + seconds
        while True:
            value = None
            with contextlib.suppress(Navigated):  # the old page went while the expression ran: ask the new one
                value = self.script(
                    f"(() => {{ try {{ const it = {expression}; return typeof it === 'object' ? it !== null : it }}"
                    " catch { return null } })()"
                )
            if value:
                return value
            assert time.monotonic() < end, f"never true: {expression}\n{self.script('document.body.innerText')[:2000]}"
            time.sleep(0.1)

    @contextlib.contextmanager
    def hastened(self, times: int) -> Iterator[None]:
        """What a page repeats that is opened in the block, it repeats so many times as often."""
        source = f"const every = window.setInterval; window.setInterval = (work, ms) => every(work, ms / {times});"
        added = self.call("Page.addScriptToEvaluateOnNewDocument", source=source)
        try:
            yield
        finally:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])

    def resize(self, width: int, height: int) -> None:
        """Make the window that large, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def shoot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; it ends with the block."""
    program = shutil.which("chromium")
    assert program, "Chromium is missing: apt-get install chromium"
    process = subprocess.Popen(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
         "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
            (target,) = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(target["webSocketDebuggerUrl"], max_size=None, ping_interval=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, f"Chromium ended with exit status {process.returncode}"
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.1)
    raise AssertionError("Chromium opened no DevTools port within 60 s")


def axe(page: Browser, url: str) -> None:
    """Nothing serious is wrong with the page for keyboards and screen readers."""
    page.go(url)
    page.script(AXE.read_text())
    found = page.script("axe.run().then((result) => result.violations)")
    grave = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not grave, [(each["id"], [node["html"] for node in each["nodes"]]) for each in grave]
