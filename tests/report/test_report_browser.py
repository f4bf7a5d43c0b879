"""The pages in a real browser, opened from the disk: drawn, quiet, within the screen, asking for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unseen.report import write_comparison, write_report

pytestmark = pytest.mark.browser
MakeRun = Callable[..., Path]

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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield started
    started.quit()


def show(browser: Any, page: Path, *, width: int, scheme: str = "light") -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    _prefer(browser, scheme)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    _wait(browser, "return document.documentElement.dataset.charts === 'drawn'")


def requests(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]


def check(browser: Any, page: Path, *, width: int, scheme: str) -> None:
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


def test_pages_are_right_on_a_phone_and_on_a_desk(browser: Any, any_run: Path) -> None:
    page = write_report(any_run)
    check(browser, page, width=390, scheme="light")
    check(browser, page, width=1280, scheme="dark")


def test_the_number_that_counts_is_seen_on_a_phone_without_scrolling_sideways(
    browser: Any, make_run: MakeRun
) -> None:
    show(browser, write_report(make_run()), width=390)
    edge = "return document.querySelector('.lead .number').getBoundingClientRect().right"
    assert browser.execute_script(edge) <= 390


def test_the_comparison_page_is_right_too(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(name, method=name, seed=i) for i, name in enumerate(("fedavg", "deepall", "csac"))]
    for folder in folders:
        write_report(folder)
    page = write_comparison(folders, tmp_path / "comparison.html")
    check(browser, page, width=390, scheme="dark")
    browser.find_element("link text", "DeepAll, seed 1").click()
    assert browser.current_url == (folders[1] / "report.html").as_uri()


def test_charts_follow_the_colour_scheme_and_the_width(browser: Any, make_run: MakeRun) -> None:
    show(browser, write_report(make_run(rounds=2)), width=1280)
    fill = "return document.querySelector('.chart .role-axis-label text').getAttribute('fill')"
    light = browser.execute_script(fill)
    wide = browser.execute_script(CHARTS)[0]["width"]
    _prefer(browser, "dark")
    _wait(browser, f"const now = (() => {{ {fill} }})(); return now && now !== '{light}'")
    screen = {"width": 600, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    _wait(
        browser, f"return document.querySelector('.chart svg').getBoundingClientRect().width < {wide / 1.5}"
    )


def test_a_tooltip_shows_a_nasty_name_as_text(
    browser: Any, make_run: MakeRun, nasty_names: list[str]
) -> None:
    from selenium.webdriver import ActionChains

    show(browser, write_report(make_run(domains=nasty_names, classes=nasty_names)), width=1280)
    cell = browser.find_element("css selector", "#chart-samples-1 .mark-rect path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    ActionChains(browser).move_to_element(cell).perform()
    shown = "return document.querySelector('#vg-tooltip-element.visible')?.textContent || ''"
    _wait(browser, f"return ({{t: (() => {{ {shown} }})()}}).t.length > 0")
    assert nasty_names[0] in browser.execute_script(shown)
    assert (
        browser.execute_script("return document.querySelectorAll('#vg-tooltip-element script').length") == 0
    )
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(("domains", "others"), [(6, 5), (30, 1)])
def test_the_legend_singles_out_a_line(browser: Any, make_run: MakeRun, domains: int, others: int) -> None:
    folder = make_run(rounds=3, domains=[f"d{i}" for i in range(domains)], held_out=["d0"])
    show(browser, write_report(folder), width=1280)
    faint = "return document.querySelectorAll('#chart-scores-1 .mark-line path[opacity=\"0.12\"]').length"
    assert browser.execute_script(faint) == 0
    labels = browser.find_elements("css selector", "#chart-scores-1 .role-legend-label text")
    assert labels[0].text == "d0 (held out)"
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", labels[0])
    labels[0].click()
    _wait(browser, f"return (() => {{ {faint} }})() === {others}")


def _prefer(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda b: b.execute_script(condition), condition)
