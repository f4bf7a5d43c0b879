"""The live page in a real browser, during a real run that is killed and resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from made_records import NASTY, append, one_round, write_live_run
from real_pages import PATIENCE, RUN, address, started

from browsing import CHARTS, TOO_WIDE, requests, set_screen, wait_for

pytestmark = pytest.mark.browser
ROUNDS = """const tiles = document.querySelector('#part-tiles')?.innerText || '';
return Number(tiles.match(/rounds[^0-9]*(\\d+)/)?.[1] || 0)"""


def open_page(browser: Any, url: str, *, width: int = 1280) -> None:
    set_screen(browser, width)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(url)


def wait_for_state(browser: Any, *states: str) -> None:
    condition = f"return {list(states)}.includes(document.documentElement.dataset.state)"
    wait_for(browser, condition, seconds=PATIENCE)


def wait_for_round(browser: Any, number: int) -> None:
    wait_for(browser, f"return (() => {{ {ROUNDS} }})() >= {number}", seconds=PATIENCE)


def test_a_tab_follows_a_run_over_a_kill_to_its_report(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(tmp_path, *RUN, "--rounds", "25", "--out", out, "--live") as process:
        url = address(process)
        open_page(browser, url)
        wait_for(browser, "return document.querySelector('#chart-scores-1 svg path')", seconds=PATIENCE)
        seen = browser.execute_script(ROUNDS)
        wait_for_round(browser, seen + 1)
        assert browser.get_log("browser") == []
        assert all(asked.startswith(url) for asked in requests(browser) if asked.startswith("http"))
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for_state(browser, "lost")
    before = browser.execute_script(ROUNDS)
    assert before < 25, "the run ended before it was killed"
    with started(tmp_path, "train", "--resume", "--out", out, "--live") as process:
        assert address(process) == url
        wait_for_state(browser, "running", "finished")  # the rest may be over before the tab asks again
        wait_for_round(browser, before + 1)
        wait_for_state(browser, "finished")
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    wait_for(browser, "return document.querySelector('#part-result a')", seconds=PATIENCE)
    browser.get(f"{url}report")
    wait_for(browser, "return document.documentElement.dataset.charts === 'drawn'", seconds=PATIENCE)
    assert "FedAvg reached" in browser.title


@pytest.mark.parametrize("width", [390, 1280])
def test_it_stays_within_the_screen_and_draws_every_chart(
    browser: Any, serve_page: Any, running_run: Path, width: int
) -> None:
    open_page(browser, serve_page(running_run).server.url, width=width)
    wait_for(browser, "return document.querySelectorAll('.chart svg').length === 4", seconds=PATIENCE)
    wait_for_state(browser, "running")
    assert all(chart["marks"] > 3 for chart in browser.execute_script(CHARTS))
    assert browser.execute_script(TOO_WIDE) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_a_name_of_another_side_is_text(browser: Any, serve_page: Any, tmp_path: Path) -> None:
    folder = write_live_run(tmp_path / "run", domains=("a", NASTY))
    append(folder, {"event": "fault", "round": 1, "client": NASTY, "reason": NASTY})
    open_page(browser, serve_page(folder).server.url)
    wait_for(browser, "return document.querySelectorAll('.chart svg').length === 4", seconds=PATIENCE)
    assert NASTY in browser.execute_script("return document.querySelector('#part-messages').innerText")
    assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.title != "hacked"
    assert browser.get_log("browser") == []


def test_a_line_that_was_singled_out_stays_so(browser: Any, serve_page: Any, running_run: Path) -> None:
    page = serve_page(running_run)
    open_page(browser, page.server.url)
    faint = "return document.querySelectorAll('#chart-scores-1 path[opacity=\"0.12\"]').length === 1"
    wait_for(browser, "return document.querySelector('#chart-scores-1 svg')", seconds=PATIENCE)
    label = browser.find_element("css selector", "#chart-scores-1 .role-legend-label text")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", label)
    label.click()
    wait_for(browser, faint)
    append(running_run, *one_round(4))
    wait_for_round(browser, 4)
    wait_for(browser, faint)


def test_an_address_that_is_no_longer_valid_says_so(
    browser: Any, serve_page: Any, running_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = serve_page(running_run)
    open_page(browser, page.server.url)
    wait_for_state(browser, "running")
    monkeypatch.setattr(page.server, "token", "another")
    wait_for_state(browser, "refused")
