"""A real browser without windows, driven through a pipe by the DevTools protocol.

Each message is a line of JSON that ends with a zero byte: the browser reads them from its file
descriptor 3, and answers on 4. No port is opened, and nothing outside of the folder is written.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.browser import packages

ANSWER_LIMIT_S = 60
_END_LIMIT_S = 10

# The sandbox needs rights that a container lacks; only pages of our own are opened.
_OPTIONS = (
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-breakpad", "--hide-scrollbars",
    "--mute-audio", "--force-color-profile=srgb", "--font-render-hinting=none",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip

# Popen cannot say which numbers the pipes have in the child; this program moves them, and becomes
# the browser. They are first moved out of the way, as one may have the number of the other.
_MOVE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number, inheritable=True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(RuntimeError):
    """The browser ended, refused a command, or did not answer; the message says more."""


@dataclass
class Page:
    """One tab: what it has fetched, logged and thrown since it was made."""

    browser: Browser
    session: str
    target: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions that nothing caught."""

    def call(self, method: str, **words: Any) -> dict[str, Any]:
        """One command of the protocol to this tab."""
        return self.browser.call(method, self.session, **words)

    def open(self, path: Path) -> Self:
        """Open a file, and return once it has loaded; how long that took is `load_seconds`."""
        self.browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.browser.wait_for("Page.loadEventFired", self.session)
        return self

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        said = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in said:
            details = said["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details["text"]
            raise BrowserError(f"the expression failed: {text}")
        return said["result"].get("value")

    def load_seconds(self) -> float:
        """From the start of the navigation to the end of the page's load event."""
        return self.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3

    def resize(self, width: int, height: int = 900) -> Self:
        """Show the page in a window of so many CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        return self

    def show(self, scheme: str = "light", media: str = "") -> Self:
        """Prefer ``light`` or ``dark``; ``media`` is ``print``, or empty for the screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        return self

    def picture(self, clip: Mapping[str, float] | None = None) -> bytes:
        """The page as PNG, to its very end, or a part of it."""
        size = clip or self.call("Page.getLayoutMetrics")["cssContentSize"] | {"scale": 1}
        words = {"format": "png", "captureBeyondViewport": True, "clip": size}
        return base64.b64decode(self.call("Page.captureScreenshot", **words)["data"])

    def paper(self) -> bytes:
        """The page as PDF, as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.pages.pop(self.session, None)


class Browser:
    """A browser of its own, which ends with the ``with`` block.

    Parameters
    ----------
    folder : Path
        Where its profile and its caches lie.
    prefix : Path, optional
        The browser as unpacked by `packages.ensure`, which is asked for it by default.
    """

    def __init__(self, folder: Path, prefix: Path | None = None) -> None:
        self.pages: dict[str, Page] = {}
        self.events: list[tuple[str, str]] = []
        self._prefix, self._folder = prefix or packages.ensure(), folder.resolve()
        self._number, self._rest = 0, b""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._start()

    def __enter__(self) -> Self:
        """Return the browser, which has started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it, and whatever it has started."""
        with contextlib.suppress(BrowserError, OSError):
            if kind is None:
                self.call("Browser.close", limit=_END_LIMIT_S)
                self._process.wait(_END_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for end in (self._commands, self._answers):
            os.close(end)
        shutil.rmtree(self._folder / "profile", ignore_errors=True)

    @contextlib.contextmanager
    def page(self, width: int = 1200, scheme: str = "light") -> Iterator[Page]:
        """A new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = self.pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            made.call(f"{domain}.enable")
        try:
            yield made.resize(width).show(scheme)
        finally:
            made.close()

    def call(
        self, method: str, session: str | None = None, limit: float = ANSWER_LIMIT_S, **words: Any
    ) -> dict[str, Any]:
        """One command of the protocol, and its answer.

        Raises
        ------
        BrowserError
            Where it is refused, or not answered in time.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": words}
        message |= {"sessionId": session} if session else {}
        self._send(json.dumps(message).encode() + b"\0")
        end = time.monotonic() + limit
        while (said := self._receive(method, end)).get("id") != self._number:
            self._note(said)
        if "error" in said:
            raise BrowserError(f"{method}: {said['error'].get('message')}")
        return said["result"]

    def wait_for(self, event: str, session: str) -> None:
        """Return once an event has happened in a tab."""
        end = time.monotonic() + ANSWER_LIMIT_S
        while (session, event) not in self.events:
            self._note(self._receive(event, end))

    def _start(self) -> None:
        theirs, self._commands = os.pipe()
        self._answers, ours = os.pipe()
        program = self._prefix / packages.PROGRAM
        own = (f"--user-data-dir={self._folder / 'profile'}", "about:blank")
        command = [sys.executable, "-ISc", _MOVE, str(theirs), str(ours), str(program)]
        self._errors = self._folder / "browser.log"
        with self._errors.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *_OPTIONS, *own],
                env=self._environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(theirs, ours), start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        os.close(ours)

    def _environment(self) -> dict[str, str]:
        """Its libraries and fonts are those unpacked beside it, the host's where it has them."""
        fonts = self._folder / "fonts.conf"
        fonts.write_text(
            '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
            f"<dir>{self._prefix / 'usr/share/fonts'}</dir>"
            f"<cachedir>{self._folder / 'fonts'}</cachedir></fontconfig>"
        )
        usual = (self._prefix / "usr/lib", self._prefix / "lib")
        # Some packages keep libraries in a folder of their own, which their programs know by its
        # place on the system: so pulseaudio does.
        own = (
            f for lib in usual for f in (lib, *lib.glob("*-linux-gnu"), *lib.glob("*-linux-gnu/*/"))
        )
        folders = [str(f) for f in own if f.is_dir()]
        return {
            "PATH": os.defpath,
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "FONTCONFIG_FILE": str(fonts),
            "LD_LIBRARY_PATH": ":".join(folders),
        }

    def _send(self, message: bytes) -> None:
        while message:
            try:
                message = message[os.write(self._commands, message) :]
            except OSError as error:
                raise self._gone() from error

    def _receive(self, what: str, end: float) -> Mapping[str, Any]:
        """The next message, whatever it is about."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise BrowserError(f"{what}: no answer in time")
            news = os.read(self._answers, 1 << 20)
            if not news:
                raise self._gone()
            self._rest += news
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _gone(self) -> BrowserError:
        said = self._errors.read_text(errors="replace")[-2000:]
        return BrowserError(f"the browser has ended; it said:\n{said}")

    def _note(self, said: Mapping[str, Any]) -> None:
        """Take note of an event."""
        page = self.pages.get(said.get("sessionId", ""))
        method, words = said.get("method", ""), said.get("params", {})
        self.events.append((said.get("sessionId", ""), method))
        if page is None:
            return
        if method == "Network.requestWillBeSent":
            page.requests.append(words["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.complaints.append(str(words["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and words["type"] in ("error", "warning"):
            page.complaints.append(str([each.get("value") for each in words["args"]]))
        elif method == "Log.entryAdded" and words["entry"]["level"] in ("error", "warning"):
            page.complaints.append(words["entry"]["text"])
