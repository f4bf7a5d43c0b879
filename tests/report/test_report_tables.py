"""Results in the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from unseen.report import result_table, to_markdown
from unseen.report.tables import weights_sentence
from unseen.runs.reader import read_run

MakeRun = Callable[..., Path]


def results(make_run: MakeRun, *methods: str, **settings: Any) -> list[dict[str, Any]]:
    return [read_run(make_run(method, method=method, **settings)).result or {} for method in methods]


def printed(found: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(result_table(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text).replace("\u00a0", " ")


def test_one_row_a_run_with_the_honest_number_first(make_run: MakeRun) -> None:
    found = results(make_run, "fedavg", "csac")
    found[0]["metrics"]["target"] = {"accuracy": 0.9126}
    found[0]["metrics"]["in_domain"] = {"accuracy": 0.5}
    text = printed(found)
    row = next(line for line in text.splitlines() if "FedAvg" in line).split()
    assert row[:3] == ["FedAvg", "75", "91.3"]
    assert "50.0" in row
    assert row[-2:] == ["14.8", "MB"]
    assert "CSAC" in text
    assert "…" not in text


def test_markup_in_names_is_printed_as_it_is(make_run: MakeRun) -> None:
    text = printed(results(make_run, "fedavg", domains=["a", "[bold]x[/]"]), width=120)
    assert "[bold]x[/]" in text


def test_regression_is_not_in_percent(make_run: MakeRun) -> None:
    found = results(make_run, "fedavg", task="regression")
    found[0]["metrics"]["target"] = {"pearson_r": 0.125}
    assert "0.1250" in printed(found)
    assert "%" not in printed(found)


def test_markdown_is_a_table_whatever_the_names(make_run: MakeRun) -> None:
    text = to_markdown(results(make_run, "fedavg", "csac", domains=["a", "b|<c>\\"]))
    lines = text.splitlines()
    assert len(lines) == 4
    assert "b\\|&lt;c>\\\\" in lines[2]
    assert {line.replace("\\|", "").count("|") for line in lines} == {lines[0].count("|")}


def test_seeds_are_told_only_where_they_differ(make_run: MakeRun) -> None:
    same = results(make_run, "fedavg", "csac")
    assert "seed" not in to_markdown(same)
    assert "FedAvg, seed 5" in to_markdown([same[0] | {"seed": 5}, same[1]])


def test_empty_columns_are_left_out_and_missing_values_stay_visible(make_run: MakeRun) -> None:
    found = results(make_run, "fedavg")
    assert "in-domain" not in to_markdown(found)
    bare = to_markdown([{"method": "fedavg"}])
    assert bare.splitlines()[2].startswith("| FedAvg | none | – |")


def test_rows_of_different_weights_are_said_to_be_so(make_run: MakeRun) -> None:
    fedavg, ppdg, old = (
        {"method": "fedavg", "client_weights": "samples"},
        {"method": "ppdg"},
        {"method": "csac"},
    )
    assert weights_sentence([fedavg, fedavg]) == "" == weights_sentence([fedavg, old])
    said = weights_sentence([fedavg, {**ppdg, "client_weights": "uniform"}, old, fedavg])
    assert said == "Weights of clients: samples in FedAvg; uniform in PPDG."
    found = results(make_run, "fedavg", "csac")
    found[0]["client_weights"], found[1]["client_weights"] = "samples", "uniform, then by divergence"
    assert "uniform, then by divergence in CSAC" in " ".join(printed(found).split())
