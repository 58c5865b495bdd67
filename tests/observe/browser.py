"""A headless Chromium, driven by the DevTools protocol over a pipe: no port, no driver, no library.

Owns the process and the conversation with it. What a page should do is in the tests.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab of a Chromium. Events that it told of are in ``events``, oldest first."""

    def __init__(self, to_it: int, from_it: int) -> None:
        self._to_it = to_it
        self._from_it = from_it
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Raises ``RuntimeError`` with what Chromium says is wrong."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_it, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(120.0)
            if answer.get("id") != self._number:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result

    def _receive(self, limit: float) -> dict[str, Any]:
        until = time.monotonic() + limit
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from_it], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {limit:g} s")
            data = os.read(self._from_it, 1 << 16)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, address: str) -> None:
        """Load a page, until it is loaded."""
        before = len(self.events)
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[before:]):
            self._receive(120.0)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise. Raises what the page raises."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, condition: str, limit: float = 60.0) -> float:
        """Seconds until the expression ``condition`` is true in the page; fails after ``limit``."""
        return float(
            self.evaluate(
                f"""new Promise((done, fail) => {{
                  const began = performance.now();
                  (function look() {{
                    const passed = (performance.now() - began) / 1000;
                    if ({condition}) return done(passed);
                    if (passed > {limit}) return fail(new Error({json.dumps(condition)} + " stayed false"));
                    setTimeout(look, 10);
                  }})();
                }})"""
            )
        )

    def wait_until_told(self, method: str, which: Callable[[dict[str, Any]], bool]) -> None:
        """Until an event of that name comes that is one of ``which``."""
        while True:
            message = self._receive(120.0)
            if message.get("method") == method and which(message["params"]):
                return

    def look(self, *, width: int, height: int, scheme: str, phone: bool = False) -> None:
        """Pretend to be a screen of this size, with ``scheme`` ``light`` or ``dark``."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def told(self, method: str) -> list[dict[str, Any]]:
        """The parameters of each event of that name so far."""
        return [event["params"] for event in self.events if event["method"] == method]


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Browser]:
    """A running Chromium with an empty ``profile`` folder."""
    it_reads, to_it = _pipe()
    from_it, it_writes = _pipe()
    command = [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    # Chromium reads commands from file 3 and writes to file 4.
    shell = f'exec "$@" 3<&{it_reads} 4>&{it_writes}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(it_reads, it_writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(it_reads)
    os.close(it_writes)
    try:
        browser = Browser(to_it, from_it)
        browser.attach()
        yield browser
    finally:
        os.close(to_it)
        process.kill()
        process.wait()
        os.close(from_it)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are numbered high enough not to be in the way of 3 and 4."""
    ends = os.pipe()
    high = [os.dup(end) for end in ends]
    while min(high) < 10:
        high = [os.dup(end) for end in ends]
    return high[0], high[1]
