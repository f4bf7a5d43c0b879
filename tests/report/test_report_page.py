"""The page of a run: self-contained, escaped, honest, and there for every kind of run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from unseen.report import write_report
from unseen.report.headline import plain_headline
from unseen.runs.reader import read_run

MakeRun = Callable[..., Path]


class Page(HTMLParser):
    """Elements, visible text and scripts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._inside = "", [""], ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data.replace("\u00a0", " ")

    @property
    def charts(self) -> dict[str, Any]:
        return dict(json.loads(self.scripts[1])["charts"])


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def change(folder: Path, **changes: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_every_run_gets_a_self_contained_page(any_run: Path) -> None:
    path = write_report(any_run)
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert path.stat().st_size < 2_000_000
    for name, attributes in page.tags:
        for key in ("src", "href", "srcset", "action"):
            assert (attributes.get(key) or "data:").startswith("data:"), (name, attributes)
        assert not [key for key in attributes if key.startswith("on")]
    assert "@import" not in html
    assert "url(" not in html.split("</style>")[0]
    boxes = {attributes.get("id") for _, attributes in page.tags if attributes.get("class") == "chart"}
    assert boxes == set(page.charts) != set()


def test_only_the_scripts_named_by_hash_may_run(make_run: MakeRun) -> None:
    html = write_report(make_run(rounds=1)).read_text(encoding="utf-8")
    page = Page(html)
    policy = next(
        a["content"] or "" for n, a in page.tags if n == "meta" and "content" in a and "src" in str(a)
    )
    hashes = re.findall(r"'sha256-([^']+)'", policy)
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    bodies = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    assert hashes == [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]


def test_the_page_depends_on_nothing_but_the_records(make_run: MakeRun) -> None:
    folder = make_run()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_nasty_names_are_shown_and_harmless(make_run: MakeRun, nasty_names: list[str]) -> None:
    page = page_of(make_run(domains=nasty_names, classes=nasty_names, held_out=nasty_names[:1]))
    for name in nasty_names:
        assert name in page.text
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert "<b>not images</b>" in page.text


def test_the_headline_says_it_in_plain_words(make_run: MakeRun) -> None:
    folder = change(make_run(), metrics={"target": {"accuracy": 0.912}})
    run = read_run(folder)
    expected = "FedAvg reached 91.2 % on ‘75’, a domain not used in training"
    assert plain_headline(run).replace("\u00a0", " ") == expected
    assert expected in page_of(folder).text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"finished": False, "rounds": 5}, "unfinished after 5 rounds, is at"),
        ({"held_out": []}, "none was held out"),
        ({"held_out": ["0", "15"]}, "‘0’ and ‘15’, domains not used in training"),
        ({"task": "regression"}, "reached Pearson r "),
        ({"finished": False, "rounds": 0}, "has no score yet"),
    ],
)
def test_headlines_of_other_runs(make_run: MakeRun, settings: dict[str, Any], words: str) -> None:
    assert words in plain_headline(read_run(make_run(**settings))).replace("\u00a0", " ")


def test_the_parts_come_in_order(make_run: MakeRun) -> None:
    text = page_of(make_run()).text
    parts = [
        "FedAvg reached", "accuracy on ‘75’", "Result", "oracle: best on", "Figures", "Every domain",
        "Examples", "What left the clients", "Clients", "Notes", "Faults", "Run it again", "4f1c9a77d2e0",
    ]  # fmt: skip
    body = text[text.index("Unseen · Run report") :]
    places = [body.index(part) for part in parts]
    assert places == sorted(places)
    assert "number of training samples" in text
    assert "--hold-out 75" in text
    assert "chosen with the labels" in text


def test_a_number_chosen_by_oracle_says_so_at_once(make_run: MakeRun) -> None:
    text = page_of(change(make_run(), selection="oracle")).text
    assert "round chosen with the held-out labels: optimistic" in text
    assert text.index("the honest rule") < text.index("oracle: best on the held-out data")


def test_the_honest_row_is_there_even_if_another_rule_chose_the_round(make_run: MakeRun) -> None:
    folder = make_run()
    run = read_run(folder)
    means = {
        record["round"]: sum(s["metrics"]["accuracy"] for s in record["scores"] if s["split"] == "validation")
        for record in run.evaluations
    }
    best = next(r for r in run.evaluations if r["round"] == max(means, key=lambda number: means[number]))
    honest = next(s["metrics"]["accuracy"] for s in best["scores"] if s["split"] == "target")
    row = page_of(change(folder, selection="last")).text.split("source validation (the honest rule)")[1]
    assert row.startswith(f"{100 * honest:.1f} %")


def test_an_unfinished_run_says_so_and_shows_its_curves(make_run: MakeRun) -> None:
    page = page_of(make_run(finished=False))
    assert "This run is unfinished" in page.text
    assert "chart-scores-1" in page.charts
    assert "Result" not in page.text.split("Figures")[0].split("is at")[1]


def test_a_run_that_only_has_a_configuration_gets_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = "digits"\nmethod = "fedavg"\nrounds = 3\n')
    page = page_of(tmp_path)
    assert "FedAvg has no score yet" in page.text
    assert page.charts == {}


def test_right_and_wrong_examples_differ_in_words(make_run: MakeRun) -> None:
    page = page_of(make_run())
    assert page.text.count("✗ wrong") == 8
    assert page.text.count("✓ right") == 4
    pictures = [a for n, a in page.tags if n == "img"]
    assert len(pictures) == 12
    assert all(str(a["alt"]).startswith("True class") for a in pictures)


def test_many_or_broken_pictures_do_not_swell_the_page(make_run: MakeRun) -> None:
    folder = make_run(rounds=1)
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    big = base64.b64encode(bytes(150_000)).decode()
    example = {"domain": "75", "truth": "1", "predicted": "1", "probability": None}
    records[-1]["examples"] = [example | {"png": '"><script>'}] + [example | {"png": big}] * 40
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert sum(name == "img" for name, _ in page_of(folder).tags) == 3
    assert (folder / "report.html").stat().st_size < 2_000_000
