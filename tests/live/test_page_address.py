"""The address of a page survives a restart, is readable by its owner only, and goes when it is done with."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from unseen.errors import UnseenError
from unseen.live.page_address import ADDRESS, forget_address, read_address


def close(page):
    page.server.shutdown()
    page.server.server_close()


def test_a_restarted_page_has_the_same_address(serve_page, running_run):
    first = serve_page(running_run)
    url = first.server.url
    close(first)
    assert serve_page(running_run).server.url == url


def test_every_folder_has_a_secret_of_its_own(serve_page, running_run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text("")
    tokens = [serve_page(folder).token for folder in (running_run, tmp_path / "other")]
    assert tokens[0] != tokens[1]
    assert all(len(token) >= 43 for token in tokens), "32 random bytes"


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes there")
def test_only_the_owner_can_read_it(serve_page, running_run):
    page = serve_page(running_run)
    path = running_run / ADDRESS
    assert path.stat().st_mode & 0o777 == 0o600
    token = page.token
    close(page)
    path.chmod(0o644)
    assert read_address(running_run) is None
    assert serve_page(running_run).token != token, "others may have read the former one"


def test_a_second_page_takes_another_port_and_leaves_the_file(serve_page, running_run, monkeypatch):
    monkeypatch.setattr("unseen.live.page_address._PATIENCE", 0.2)
    first = serve_page(running_run)
    kept = (running_run / ADDRESS).read_bytes()
    second = serve_page(running_run)
    assert second.server.server_port != first.server.server_port
    assert second.token == first.token
    assert (running_run / ADDRESS).read_bytes() == kept


def test_a_port_that_is_taken_is_named(serve_page, running_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnseenError, match=f"port {port} cannot be used"):
            serve_page(running_run, port=port)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"port": 0, "token": "x"}', '{"port": 80, "token": "../x"}', "\xff", "null"]
)
def test_a_damaged_address_is_replaced(serve_page, running_run, text):
    path = running_run / ADDRESS
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    page = serve_page(running_run)
    assert json.loads(path.read_text()) == {"port": page.server.server_port, "token": page.token}


def test_a_forgotten_address_may_be_forgotten_again(serve_page, running_run):
    serve_page(running_run)
    for _ in range(2):
        forget_address(running_run)
    assert read_address(running_run) is None
