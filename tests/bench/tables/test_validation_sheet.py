"""Validation domains and worst groups next to the held-out domains, with the printed rows."""

from __future__ import annotations

from dataclasses import replace

from unseen.bench.bench_job import RELEASED
from unseen.bench.bench_summary import summarize_bench
from unseen.bench.results import as_values, read_results, write_results

WILDS = {"hold_out": (RELEASED,), "seeds": (0, 1), "published": "ppdg-table3", "methods": {"fedavg": {}}}


def results(result_of, **changes):
    rules = {"source-validation": 0.5, "validation-domains": 0.6, "oracle": 0.7}
    made = [result_of("fedavg", RELEASED, seed, 0.5, **{"worst_group": 0.3, **changes}) for seed in (0, 1)]
    return [replace(result, accuracy=rules) for result in made]


def test_the_sheet_has_the_columns_of_the_paper_and_its_rows(grid_of, result_of):
    found = results(result_of, validation=0.65, validation_worst=0.45)
    summary = summarize_bench(grid_of(**WILDS), found)
    sheet = summary.models[0].validation
    assert sheet in summary.sheets
    assert sheet.headers[1:] == (
        *("validation", "worst group of validation", "held out", "worst group held out"),
    )
    (_, ours), (source, printed) = sheet.groups
    assert [cell.text.split(" ")[0] for cell in ours[0][1:]] == ["65.0", "45.0", "60.0", "30.0"]
    assert "PPDG" in source
    rows = {line[0].text: [cell.text for cell in line[1:]] for line in printed}
    assert [float(value) for value in rows["PPDG (published)"]] == [59.6, 50.4, 53.8, 33.9]


def test_columns_without_values_and_the_whole_sheet_without_validation_domains_are_left_out(
    grid_of, result_of, tmp_path
):
    without_groups = results(result_of, validation=0.65, worst_group=None)
    sheet = summarize_bench(grid_of(**WILDS), without_groups).models[0].validation
    assert sheet.headers[1:] == ("validation", "held out")
    plain = results(result_of)
    assert summarize_bench(grid_of(**WILDS), plain).models[0].validation is None
    assert "validation" not in as_values(plain[0]), "lines of other runs stay as they were"
    write_results(tmp_path / "results.jsonl", without_groups)
    assert read_results(tmp_path / "results.jsonl") == without_groups
