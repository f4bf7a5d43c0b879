"""Looking at pages in a real browser, for every test that does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
CHARTS = """return [...document.querySelectorAll('.chart')].map(box => {
  const drawn = box.querySelector('svg'), size = drawn ? drawn.getBoundingClientRect() : {};
  return {id: box.id, width: size.width || 0, height: size.height || 0, marks:
          box.querySelectorAll('svg path, svg text').length, room: box.getBoundingClientRect().width};
})"""
TOO_WIDE = """const room = document.documentElement.clientWidth;
return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && !e.closest('svg'))
  .filter(e => e.getBoundingClientRect().right > room + 0.5).map(e => e.outerHTML.slice(0, 120))"""


def start_browser(profile: Path) -> Any:
    """A headless Chromium that logs what it says and asks for; the test is skipped where there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return selenium.Chrome(options=options, service=selenium.ChromeService(driver))


def show(browser: Any, page: Path, *, width: int, scheme: str = "light") -> None:
    """Open a page from the disk and wait until its charts are drawn."""
    set_screen(browser, width)
    prefer(browser, scheme)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    wait_for(browser, "return document.documentElement.dataset.charts === 'drawn'")


def requests(browser: Any) -> list[str]:
    """What the page asked for since it was opened."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]


def check(browser: Any, page: Path, *, width: int, scheme: str) -> None:
    """A page must be quiet, ask for nothing but itself, draw every chart and stay within the screen."""
    show(browser, page, width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]
    charts = browser.execute_script(CHARTS)
    assert charts
    for chart in charts:
        assert chart["height"] > 50, chart
        assert chart["marks"] > 3, chart
        assert chart["width"] == pytest.approx(chart["room"], abs=8), chart
    assert browser.execute_script(TOO_WIDE) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def prefer(browser: Any, scheme: str) -> None:
    """Let the browser ask for light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def set_screen(browser: Any, width: int) -> None:
    """Give the browser a screen of this width; a narrow one is a phone's."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def wait_for(browser: Any, condition: str, *, seconds: float = 20) -> None:
    """Wait until a script returns something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, seconds, poll_frequency=0.05)
    wait.until(lambda b: b.execute_script(condition), condition)
