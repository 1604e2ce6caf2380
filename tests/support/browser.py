"""Headless Chromium for tests of the dashboard, with checks for errors of a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from tests.support.node import node_packages
from tests.support.processes import UNDER_LOAD

_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
# Chromium cannot create a sandbox as root in a container. The other flags keep it from sending requests of its own.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_REPORTED_IMPACTS = frozenset({"serious", "critical"})
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Starts Chromium. Raises AssertionError that says what to install if it is missing."""
    executable = next(filter(None, map(shutil.which, _EXECUTABLES)), None)
    if executable is None:
        raise AssertionError("These tests need Chromium: `apt-get install chromium`, or have it on PATH.")
    expect.set_options(timeout=5_000 * UNDER_LOAD)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab with a page of the service, which records the page's errors in `faults`."""

    def __init__(self, browser: Browser, address: str, *, downloads: bool = False, **options: Any) -> None:
        self._address = address
        self._context = browser.new_context(
            viewport=options.pop("viewport", DESKTOP), accept_downloads=downloads, **options
        )
        self._context.set_default_timeout(20_000 * UNDER_LOAD)
        self.page: Page = self._context.new_page()
        self.faults: list[str] = []
        self.addresses: list[str] = []
        self._expected: set[int] = set()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)

    def open(self, route: str = "") -> Page:
        """Opens a page of the dashboard, such as `#/jobs`, and waits for its heading."""
        self.page.goto(f"{self._address}/{route}")
        self.page.get_by_role("heading", level=1).wait_for()
        return self.page

    def expect_refusals(self, *statuses: int) -> None:
        """Ignores requests with these statuses, which the browser would report as errors on its console."""
        self._expected |= set(statuses)

    def check(self) -> None:
        """Raises AssertionError after errors on the console, exceptions, dialogs or requests to other hosts."""
        assert not self.faults, "\n".join(self.faults)

    def check_accessibility(self) -> None:
        """Raises AssertionError if axe-core finds a serious or critical problem on the current page."""
        self.page.evaluate((node_packages() / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [
            f"{one['id']} ({one['impact']}): {one['help']}\n  "
            + "\n  ".join(node["html"][:200] for node in one["nodes"][:5])
            for one in found["violations"]
            if one["impact"] in _REPORTED_IMPACTS
        ]
        assert not serious, f"{self.page.url}\n" + "\n".join(serious)

    def save_screenshot(self, path: Path) -> None:
        """Writes a screenshot of the whole page as PNG."""
        self.page.screenshot(path=path, full_page=True)

    def close(self) -> None:
        """Closes the tab."""
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if any(f"status of {status} " in message.text for status in self._expected):
            return
        self.faults.append(f"console {message.type}: {message.text} {json.dumps(message.location)}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        self.addresses.append(request.url)
        here = urlsplit(self._address).netloc
        if urlsplit(request.url).netloc != here and not request.url.startswith(("data:", "blob:")):
            self.faults.append(f"request to another host: {request.url}")
