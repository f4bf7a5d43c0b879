"""The pages in a real browser, opened from the disk: drawn, quiet, within the screen, asking for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browsing import CHARTS, check, prefer, show, wait_for
from unseen.report import write_comparison, write_report

pytestmark = pytest.mark.browser
MakeRun = Callable[..., Path]


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
    prefer(browser, "dark")
    wait_for(browser, f"const now = (() => {{ {fill} }})(); return now && now !== '{light}'")
    screen = {"width": 600, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wait_for(
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
    wait_for(browser, f"return ({{t: (() => {{ {shown} }})()}}).t.length > 0")
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
    wait_for(browser, f"return (() => {{ {faint} }})() === {others}")
