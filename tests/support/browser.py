"""Pages in a headless Chromium: what they ask the network for, and what they say to the console."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 60.0
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,1000",
)


@dataclass(frozen=True)
class Page:
    """An opened page."""

    driver: Any

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script's `return`."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str) -> None:
        """Until the script's value is true."""
        end = time.monotonic() + WAIT_S
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """What was asked for since the last call."""
        messages = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        return [
            message["message"]["params"]["request"]["url"]
            for message in messages
            if message["message"]["method"] == "Network.requestWillBeSent"
        ]

    def console(self) -> list[str]:
        """What was said to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def opened(path: Path) -> Iterator[Page]:
    """The page in a new browser with a new profile; skips where no Chromium is installed."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver_path = shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip(
            "no chromium and chromedriver on PATH: apt-get install chromium chromium-driver"
        )
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(driver_path))
        try:
            page = Page(driver)
            driver.get("about:blank")
            page.requests(), page.console()
            driver.get(path.resolve().as_uri())
            page.wait_for("return document.readyState === 'complete'")
            yield page
        finally:
            driver.quit()
