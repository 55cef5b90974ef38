"""A real browser over chromedriver's HTTP interface: as much as the tests need."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--window-size=1100,900",
]  # fmt: skip


class Browser:
    """One session of a browser."""

    def __init__(self, port: int, profile: Path) -> None:
        self._address = f"http://127.0.0.1:{port}"
        options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        started = self._send("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._address += f"/session/{started['sessionId']}"

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, path: Path) -> None:
        self._send("POST", "/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click as a user does: it fails if something else is in the way."""
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        self._send("POST", f"/element/{next(iter(found.values()))}/click", {})

    def move_to(self, x: float, y: float) -> None:
        self.pointer(("move", x, y))

    def pointer(self, *steps: tuple[str, float, float] | str | float) -> None:
        """Move, press and release: ("move", x, y), "down", "up", or seconds to wait."""
        actions: list[dict[str, Any]] = []
        for step in steps:
            if isinstance(step, tuple):
                actions.append({"type": "pointerMove", "duration": 20, "x": round(step[1]), "y": round(step[2])})
            elif isinstance(step, str):
                actions.append({"type": {"down": "pointerDown", "up": "pointerUp"}[step], "button": 0})
            else:
                actions.append({"type": "pause", "duration": round(1000 * step)})
        self._send("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def press(self, key: str) -> None:
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screen(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        taken = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def log(self, kind: str) -> list[Any]:
        return self._send("POST", "/se/log", {"type": kind})

    def close(self) -> None:
        self._send("DELETE", "")


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        session = Browser(port, profile)
        try:
            yield session
        finally:
            session.close()
    finally:
        process.terminate()
        process.wait()
