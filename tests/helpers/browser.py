"""Serve a page on loopback, and show it in a real browser without a window."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIRTUAL_MILLISECONDS = 15_000  # that a page believes to have, after each of its requests


def find_browser() -> str:
    """Return the command of the installed browser, or skip the test."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    return browser


def show(browser: str, address: str, profile: Path, *options: str) -> str:
    """Return what a page shows after its scripts have run, as HTML."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--window-size=2800,1200",  # columns of tables outside the window are not drawn
        f"--virtual-time-budget={VIRTUAL_MILLISECONDS}",
        f"--user-data-dir={profile}",
        *options,
        "--dump-dom",
        address,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@contextlib.contextmanager
def serve_folder(folder: Path) -> Iterator[int]:
    """Serve the files of a folder on loopback, and yield the port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
        thread = threading.Thread(target=pages.serve_forever)
        thread.start()
        try:
            yield pages.server_port
        finally:
            pages.shutdown()
            thread.join()
