"""`unseen help`: pages, methods, commands, and what is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen import __version__
from unseen.cli import help_command
from unseen.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_version_needs_no_command(unseen):
    answer = unseen("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"unseen {__version__}\n", "")


def test_topics_are_the_pages_of_the_documentation_and_every_method(unseen):
    listed = unseen("help")
    assert listed.code == 0
    for page in DOCS.glob("*.md"):
        assert f"unseen help {page.stem} " in listed.out
    assert help_command.find_pages().keys() >= {*METHODS, "methods"}


def test_a_page_is_printed_as_it_is_where_output_is_no_terminal(unseen):
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    assert "<!--" not in text
    assert unseen("help", "training").out == text + "\n"


def test_what_scripts_leave_in_a_page_is_not_shown(unseen):
    assert "<!--" in (DOCS / "architecture.md").read_text(encoding="utf-8")
    shown = unseen("help", "architecture").out
    assert shown.startswith("# Architecture")
    assert "<!--" not in shown


def test_a_terminal_gets_formatted_text(unseen, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = unseen("help", "fedavg").out
    assert METHODS["fedavg"].title in shown
    assert "# FedAvg" not in shown
    assert "\x1b[" in shown


@pytest.mark.parametrize(
    ("topic", "usage"), [("train", "Usage: unseen train"), ("list", "Usage: unseen list")]
)
def test_a_command_without_a_page_shows_its_own_help(unseen, topic, usage):
    shown = unseen("help", topic)
    assert shown.code == 0
    assert usage in shown.out


def test_unknown_topics_are_refused_with_the_nearest(unseen):
    answer = unseen("help", "trainig")
    assert answer.code == 2
    assert "unknown topic 'trainig'. Did you mean 'training'?" in answer.err


def test_an_installation_without_pages_says_so(unseen, monkeypatch, tmp_path):
    monkeypatch.setattr(help_command, "PAGES", (tmp_path / "help",))
    answer = unseen("help", "training")
    assert answer.code == 1
    assert "install unseen again" in answer.err
