"""Who gets an answer from a live page: somebody on this machine who knows its token, and only the page."""

from __future__ import annotations

from urllib.parse import quote

import pytest

INSIDE = ("config.toml", "records.jsonl", ".live.json", "checkpoints/lock", "model.safetensors")


@pytest.fixture
def page(serve_page, running_run):
    return serve_page(running_run)


def test_the_page_and_its_news_are_served(page):
    status, body, headers = page.ask(f"/{page.token}/")
    assert status == 200
    assert b"vegaEmbed" in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy, "no other place may be asked"
    assert b"connect-src 'self'" in body
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert page.news()["state"] == "running"


def test_it_listens_on_loopback_only(page):
    assert page.server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("wrong", ["", "x", "{token}x", "{short}", "%00", "é", "state", "TOKEN"])
@pytest.mark.parametrize("name", ["", "/", "/state", "/report"])
def test_nothing_is_told_without_the_token(page, wrong, name):
    token = wrong.format(token=page.token, short=page.token[:-1])
    status, body, _ = page.ask(quote(f"/{token}{name}", safe="/%"))
    assert status == 403
    assert page.token.encode() not in body
    assert b"held" not in body
    assert page.server.seen is None, "a stranger keeps no page alive"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "0.0.0.0:{port}",
        "[::1]:1",
        "",
        ":1",
    ],
)
def test_another_name_for_this_machine_is_refused(page, host):
    """A page elsewhere whose name is suddenly pointed at this machine sends its own name."""
    named = host.format(port=page.server.server_port) or " "
    assert page.ask(f"/{page.token}/state", host=named)[0] == 403


def test_a_request_without_a_host_is_refused(page):
    assert page.ask(f"/{page.token}/state", named=False)[0] == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "localhost:8800", "127.0.0.1", "LOCALHOST:1"])
def test_names_of_this_machine_are_served_on_any_forwarded_port(page, host):
    assert page.ask(f"/{page.token}/state", host=host.format(port=page.server.server_port))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "NONSENSE"])
def test_it_can_only_be_read(page, method):
    status, body, headers = page.ask(f"/{page.token}/state", method=method)
    assert status == 405
    assert headers["Allow"] == "GET"
    assert method.encode() not in body


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize(
    "way", ["{name}", "./{name}",
            "../run/{name}", "..%2frun%2f{name}", "%2e%2e/run/{name}", "report/../{name}",
            "/{folder}/{name}", "{folder}/{name}", "..\\run\\{name}", "report%00{name}", "{name}%00",
            "....//run/{name}", "file://{folder}/{name}"]
)  # fmt: skip
def test_no_file_can_be_reached_by_its_name(page, running_run, name, way):
    (running_run / "model.safetensors").write_bytes(b"weights")
    status, body, _ = page.ask(f"/{page.token}/" + way.format(name=name, folder=running_run))
    assert status == 404
    assert len(body) < 100


@pytest.mark.parametrize(
    "path", ["..", "/etc/passwd", "//etc/passwd", "/../../etc/passwd", "*", "http://evil/"]
)
def test_a_path_without_the_token_reaches_nothing(page, path):
    assert page.ask(path)[0] in (400, 403)


def test_the_report_is_served_once_it_is_written(page, running_run):
    assert page.ask(f"/{page.token}/report")[0] == 404
    (running_run / "report.html").write_text("<p>done</p>", encoding="utf-8")
    status, body, _ = page.ask(f"/{page.token}/report")
    assert (status, body) == (200, b"<p>done</p>")


def test_the_address_without_its_slash_leads_to_the_page(page):
    status, _, headers = page.ask(f"/{page.token}")
    assert (status, headers["Location"]) == (308, f"/{page.token}/")


def test_a_line_that_is_no_request_is_refused_without_repeating_it(page):
    status, body, _ = page.ask("/" + "a" * 70_000)
    assert status == 414
    assert b"aaa" not in body


def test_nothing_is_logged(page, capfd):
    page.ask(f"/{page.token}/state")
    page.ask("/wrong")
    assert capfd.readouterr() == ("", "")
