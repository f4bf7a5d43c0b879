"""Tables as people get them: terminal, Markdown, LaTeX, CSV; published rows always apart and marked."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from unseen.bench.bench_summary import summarize_bench
from unseen.bench.comparisons import compare_with_baseline
from unseen.bench.statistics import Estimate
from unseen.bench.study import studies
from unseen.bench.tables.comparison_sheets import matrix_sheet, statistics_sheet
from unseen.bench.tables.render import (
    FIELDS,
    escape_latex,
    latex_file,
    to_csv,
    to_latex,
    to_markdown,
    to_terminal,
)
from unseen.bench.tables.result_sheets import rules_sheet, table_sheet
from unseen.bench.tables.results_table import PublishedRows, TableCell, TableRow, make_table

HONEST = "source-validation"


@pytest.fixture
def published():
    values = [TableCell(Estimate(value, None, 1)) for value in (0.99, 0.98, 0.97, 0.96)]
    row = TableRow("CSAC", "CSAC", tuple(values), TableCell(Estimate(0.975, 0.001, 1)))
    return PublishedRows("CSAC (2023), table 3", (row,), selection="oracle")


@pytest.fixture
def study(grid_of, results_of):
    return studies(grid_of(), results_of(grid_of()))[0]


@pytest.fixture
def table(study, published):
    return make_table(study, HONEST, baseline="fedavg", published=published)


def printed(sheet, width=110):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(to_terminal(sheet))
    return console.file.getvalue()


def markdown_rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_markdown(table):
    text = to_markdown(table_sheet(table))
    header, ruler, *rows = markdown_rows(text)
    assert text.startswith("## Held-out accuracy in %, by source validation\n")
    assert header == ["method", "0", "15", "30", "45", "mean"]
    assert ruler == [":--", *["--:"] * 5]
    assert [row[0] for row in rows] == ["FedAvg", "CSAC", "DeepAll", "CSAC (published)"]
    assert re.fullmatch(r"\*\*8\d\.\d ± \d\.\d\*\*", rows[1][1])
    assert re.fullmatch(r"\*\*8\d\.\d ± \d\.\d\\\*\*\*", rows[1][5])
    assert rows[3][1:] == ["99.0", "98.0", "97.0", "96.0", "97.5 ± 0.1"]
    assert "* significantly better, † significantly worse than FedAvg" in text
    assert "Published in CSAC (2023), table 3; round chosen by: oracle." in text


def test_a_published_row_never_takes_the_bold_from_ours(table):
    rows = markdown_rows(to_markdown(table_sheet(table)))
    assert all(cell.startswith("**") for cell in rows[3][1:])
    assert not any("*" in cell for cell in rows[5])


def test_missing_runs_are_counted_in_the_table(grid_of, results_of):
    results = [r for r in results_of(grid_of()) if not (r.label == "csac" and r.held_out == "0" and r.seed)]
    sheet = table_sheet(make_table(studies(grid_of(), results)[0], HONEST))
    assert sheet.headers[-1] == "runs"
    lines = {line[0].text: [cell.text for cell in line[1:]] for line in sheet.groups[0][1]}
    assert lines["CSAC"][-1] == "10 of 12"
    assert lines["CSAC"][0].endswith("(1)")
    assert lines["FedAvg"][-1] == "12 of 12"
    assert "brackets" in sheet.note and "can be bold" in sheet.note


def test_latex_is_a_table_of_booktabs(table):
    text = to_latex(table_sheet(table), label="tab:x")
    assert r"\begin{tabular}{lrrrrr}" in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(lines) == 5
    assert {line.count("&") for line in lines} == {5}
    assert body.count(r"\midrule") == 2
    assert r"\textbf{" in body
    assert r"$\pm$" in body
    assert r"\multicolumn{6}{l}{\emph{published in CSAC (2023), table 3; round chosen by: oracle}} \\" in body
    assert text.count("{") == text.count("}")
    assert "accuracy in \\%" in text


def test_latex_prints_any_name():
    assert escape_latex(r"a_b & 50% \x {y} #1 $2 ~ ^") == (
        r"a\_b \& 50\% \textbackslash{}x \{y\} \#1 \$2 \textasciitilde{} \textasciicircum{}"
    )


def test_a_latex_file_holds_all_sheets_with_labels(table):
    text = latex_file([table_sheet(table), rules_sheet([table])])
    assert text.count(r"\begin{table}") == 2
    assert len(set(re.findall(r"\\label\{(.*?)\}", text))) == 2


def test_csv_has_one_line_a_cell_and_keeps_published_apart(study, published):
    tables = [make_table(study, rule, baseline="fedavg", published=published) for rule in study.rules]
    rows = list(csv.DictReader(io.StringIO(to_csv(tables))))
    assert tuple(rows[0]) == FIELDS
    ours = [row for row in rows if not row["published"]]
    theirs = [row for row in rows if row["published"]]
    assert len(ours) == 3 * 3 * 5
    assert len(theirs) == 5
    assert {row["selection"] for row in theirs} == {"oracle"}
    assert {row["published"] for row in theirs} == {"CSAC (2023), table 3"}
    first = next(row for row in ours if (row["method"], row["held_out"]) == ("csac", "15"))
    cell = tables[0].rows[1].cells[1].estimate
    assert float(first["mean"]) == pytest.approx(cell.mean, rel=1e-5)
    assert float(first["standard_error"]) == pytest.approx(cell.error, rel=1e-5)
    assert first["runs"] == "3"
    assert next(r for r in ours if (r["method"], r["held_out"]) == ("csac", "mean"))["verdict"] == "better"


def test_the_terminal_table_fits_and_says_all(table):
    text = printed(table_sheet(table))
    assert max(map(len, text.splitlines())) <= 110
    for word in ("CSAC (published)", "published in CSAC (2023), table 3", "DeepAll", "97.5 ± 0.1"):
        assert word in text


def test_names_with_brackets_are_no_markup_in_the_terminal(grid_of, results_of):
    grid = grid_of(hold_out=("[red]x", "b[/]", "a|b", "<i>"))
    sheet = table_sheet(make_table(studies(grid, results_of(grid))[0], HONEST))
    assert all(name in printed(sheet, width=160) for name in grid.hold_out)
    header = to_markdown(sheet).splitlines()[2]
    assert "a\\|b" in header
    assert "<i>" not in header


def test_all_rules_side_by_side(study):
    sheet = rules_sheet([make_table(study, rule) for rule in study.rules])
    assert sheet.headers == ("method", "source validation", "last round", "oracle")
    means = [float(cell.text.split(" ")[0]) for cell in sheet.groups[0][1][0][1:]]
    assert means[1] < means[0] < means[2]
    assert "nobody has in practice" in sheet.note


def test_the_statistics_table(study):
    sheet = statistics_sheet(study, HONEST, compare_with_baseline(study, HONEST, "fedavg"))
    csac, deepall = sheet.groups[0][1]
    assert sheet.title == "Against FedAvg, by source validation"
    assert csac[0].text == "CSAC"
    assert re.fullmatch(r"\+\d\.\d \(\+\d\.\d to \+\d\.\d\)", csac[1].text)
    assert csac[3].text == "<0.001"
    assert csac[3].bold
    assert csac[6].text == "12"
    assert deepall[0].text == "DeepAll"


def test_every_table_of_a_bench_has_a_title_of_its_own(grid_of, results_of):
    grid = grid_of(models=("small-cnn", "lenet"))
    titles = [sheet.title for sheet in summarize_bench(grid, results_of(grid)).sheets]
    assert len(set(titles)) == len(titles)


def test_the_statistics_table_of_single_runs_claims_nothing(grid_of, results_of):
    grid = grid_of(seeds=(0,), hold_out=("0",))
    study = studies(grid, results_of(grid))[0]
    sheet = statistics_sheet(study, HONEST, compare_with_baseline(study, HONEST, "fedavg"))
    for line in sheet.groups[0][1]:
        assert [cell.text for cell in line[2:6]] == ["–"] * 4
        assert not any(cell.bold for cell in line)


def test_the_matrix_is_antisymmetric(study):
    sheet = matrix_sheet(study, HONEST)
    cells = [[cell.text for cell in line[1:]] for line in sheet.groups[0][1]]
    assert [cells[i][i] for i in range(3)] == [""] * 3
    assert cells[0][1] == "− <0.001"
    assert cells[1][0] == "+ <0.001"
    assert cells[1][2][1:] == cells[2][1][1:]


def test_regression_metrics_keep_three_decimals(grid_of, results_of):
    grid = grid_of()
    study = studies(grid, results_of(grid, metric="pearson_r"))[0]
    sheet = table_sheet(make_table(study, HONEST))
    assert sheet.title == "Held-out Pearson r, by source validation"
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", sheet.groups[0][1][0][1].text)
    tests = statistics_sheet(study, HONEST, compare_with_baseline(study, HONEST, "fedavg"))
    assert tests.headers[1].startswith("difference")


def test_columns_with_fewer_seeds_are_complete_and_named(grid_of, results_of):
    grid = grid_of(seeds_at={"15": (0,), "30": (0,)})
    found = results_of(grid)
    whole = make_table(studies(grid, found)[0], HONEST)
    assert (whole.planned, whole.seeds) == (8, (3, 1, 1, 3))
    text = to_markdown(table_sheet(whole))
    assert "Mean ± standard error over 3 seeds, 1 at 15, 30; bold" in text
    assert "Runs are missing" not in text
    lacking = make_table(studies(grid, found[1:])[0], HONEST)
    assert "7 of 8" in to_markdown(table_sheet(lacking))
    other_seed = [replace(found[3], seed=1)]
    assert found[3].held_out == "15"
    assert studies(grid, other_seed)[0].results == ()
