"""What a notebook gets of a run: rows of scores, and HTML in which no name runs as code."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from unseen import RunResult
from unseen.report.notebook import run_html, score_rows
from unseen.runs.reader import read_run


class Tags(HTMLParser):
    """The tags of a text, each closed, and what stands between them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.unclosed, self.texts = set(), [], []
        self.feed(text)
        assert self.unclosed == []

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.unclosed.append(tag)

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def test_every_run_has_html_of_closed_tags_without_script_or_style(any_run):
    shown = Tags(run_html(read_run(any_run)))
    assert not shown.found & {"script", "style", "b"}
    assert "p" in shown.found


def test_the_table_shows_the_kept_round(make_run):
    run = read_run(make_run())
    texts = Tags(run_html(run)).texts
    assert f"{100 * run.result['metrics']['target']['accuracy']:.1f}\u00a0%" in texts
    assert "held-out domain" in texts


def test_names_are_escaped(make_run, nasty_names):
    run = read_run(make_run(domains=["a", *nasty_names], held_out=nasty_names[:1]))
    text = run_html(run)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_the_page_is_named_where_there_is_one(make_run):
    folder = make_run()
    assert "report.html" not in run_html(read_run(folder))
    (folder / "report.html").touch()
    assert str(folder / "report.html") in run_html(read_run(folder))


def test_a_row_per_round_domain_and_split(make_run):
    run = read_run(make_run(rounds=3))
    rows = score_rows(run)
    assert len(rows) == sum(len(record["scores"]) for record in run.evaluations)
    last = run.evaluations[-1]
    (row,) = [row for row in rows if row["round"] == last["round"] and row["split"] == "target"]
    (score,) = [score for score in last["scores"] if score["split"] == "target"]
    assert row["accuracy"] == score["metrics"]["accuracy"]
    assert (row["domain"], row["held_out"], row["method"]) == ("75", "75", "fedavg")


def test_unfinished_runs_have_rows_too(make_run):
    rows = score_rows(read_run(make_run(finished=False, rounds=2)))
    assert {row["seed"] for row in rows} == {0}
    assert len({row["round"] for row in rows}) >= 2


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_result_offers_both(make_run, library):
    pytest.importorskip(library)
    folder = make_run(rounds=3)
    result, run = RunResult(folder, {}), read_run(folder)
    frame = result.frame(library)
    assert list(frame["accuracy"]) == [row["accuracy"] for row in score_rows(run)]
    assert result._repr_html_() == run_html(run)
