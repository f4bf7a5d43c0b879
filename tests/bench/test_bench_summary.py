"""Published rows beside ours: under the right columns, with the printed digits, never ranked with ours."""

from __future__ import annotations

import pytest

from unseen.bench.bench_files import write_outputs
from unseen.bench.bench_summary import published_rows, published_sheet, summarize_bench
from unseen.bench.papers.published_tables import list_published, load_published
from unseen.bench.study import studies

ANGLES = ("0", "15", "30", "45", "60", "75")


@pytest.fixture
def paper_grid(grid_of):
    return grid_of(hold_out=ANGLES, published="csac-table3", seeds=(0,))


def lines(sheet):
    return {line[0].text: [cell.text for cell in line[1:]] for _, group in sheet.groups for line in group}


def test_rows_stand_under_our_columns_as_they_were_printed(paper_grid, results_of):
    (each,) = summarize_bench(paper_grid, results_of(paper_grid)).models
    for sheet in each.table_sheets.values():
        found = lines(sheet)
        printed = load_published("csac-table3").rows["FedAvg"]
        cells = [cell.split(" ± ")[0] for cell in found["FedAvg (published)"]]
        assert cells == [f"{value:.2f}" for value in (*printed.values, printed.average)]
        assert not any(cell.bold for line in sheet.groups[1][1] for cell in line)
        assert sheet.groups[1][0].startswith("published in CSAC 2023, table 3; round chosen by: oracle")


def test_columns_in_another_order_are_found_by_name(grid_of, results_of):
    grid = grid_of(hold_out=("75", "0"))
    found = published_rows("csac-table3", studies(grid, results_of(grid))[0])
    assert found is not None
    printed = load_published("csac-table3").rows["CSAC"].values
    csac = next(row for row in found.rows if row.label == "CSAC")
    assert [cell.estimate.mean for cell in csac.cells] == pytest.approx([printed[5] / 100, printed[0] / 100])


def test_an_average_over_other_domains_is_left_out(grid_of, results_of):
    grid = grid_of(hold_out=("75", "0"))
    found = published_rows("csac-table3", studies(grid, results_of(grid))[0])
    assert found is not None
    assert {row.mean.estimate for row in found.rows} == {None}


def test_a_table_that_does_not_fit_is_shown_as_printed(grid_of, results_of, tmp_path):
    grid = grid_of(published="csac-table3", hold_out=("north", "south"))
    made = write_outputs(tmp_path, grid, results_of(grid))
    assert all(each.honest.published is None for each in made.overview.models)
    assert "Published: " in made.page.read_text()
    assert "published in CSAC" in made.page.read_text()
    assert "(published)" not in made.markdown.read_text()


def test_other_metrics_do_not_stand_beside_ours(grid_of, results_of):
    grid = grid_of(hold_out=ANGLES)
    study = studies(grid, results_of(grid, metric="pearson_r"))[0]
    assert published_rows("csac-table3", study) is None


WITH_ROWS = [name for name in list_published() if load_published(name).rows]


def test_a_table_whose_rows_we_lack_is_not_shown(grid_of):
    (lacking, *_) = [name for name in list_published() if name not in WITH_ROWS]
    assert summarize_bench(grid_of(published=lacking), []).printed is None


@pytest.mark.parametrize("name", WITH_ROWS)
def test_every_printed_table_can_be_shown(name):
    sheet = published_sheet(name)
    found = load_published(name)
    assert {len(line) for _, group in sheet.groups for line in group} == {len(sheet.headers)}
    assert len(sheet.groups[0][1]) == len(found.rows)


@pytest.mark.parametrize("name", WITH_ROWS)
def test_every_printed_table_fits_a_grid_of_its_own_columns(name, grid_of, results_of):
    found = load_published(name)
    grid = grid_of(hold_out=found.columns, published=name, models=(found.model,) if found.model else ())
    metric = {"pearson": "pearson_r"}.get(found.metric, found.metric)
    (each,) = summarize_bench(grid, results_of(grid, metric=metric)).models
    if found.metric in ("accuracy", "pearson"):
        assert each.honest.published is not None
        assert len(lines(each.table_sheets["source-validation"])) > len(grid.methods)
    else:
        assert each.honest.published is None
