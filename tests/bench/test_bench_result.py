"""A bench in Python: frames and notebook tables from its grid and results alone."""

from __future__ import annotations

from html import unescape

import pytest

import unseen
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.results import write_results
from unseen.errors import UsageError


@pytest.fixture
def bench_folder(tmp_path, grid_of, results_of):
    """A made-up bench without job folders."""

    def make(**changes):
        grid = grid_of(**changes)
        place = BenchFolder(tmp_path)
        grid.save(place.grid)
        write_results(place.results, results_of(grid))
        return tmp_path

    return make


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_frame_has_a_line_per_job_and_a_column_per_rule(bench_folder, library):
    pytest.importorskip(library)
    bench = unseen.load_bench(bench_folder())
    frame = bench.frame(library)
    assert frame.shape[0] == len(bench.results) == 3 * 4 * 3
    assert list(frame["source-validation"]) == [each.accuracy["source-validation"] for each in bench.results]
    assert {"label", "held_out", "seed", "last", "oracle", "in_domain", "job"} <= set(frame.columns)
    assert not {"curve", "accuracy"} & set(frame.columns)


def test_a_notebook_shows_the_tables_that_the_files_have(bench_folder):
    bench = unseen.load_bench(str(bench_folder()))
    shown = unescape(bench._repr_html_())
    (model,) = bench.summary.models
    rule = model.honest.rule
    for sheet in (model.table_sheets[rule], model.statistics_sheets[rule]):
        assert f"<caption>{sheet.title}</caption>" in shown
        for _, lines in sheet.groups:
            assert all(cell.text in shown for line in lines for cell in line)
    assert "<strong>" in shown


def test_labels_are_escaped(bench_folder):
    label = "fedavg<script>"
    bench = unseen.load_bench(bench_folder(methods={label: {"method": "fedavg"}}, baseline=None))
    assert "<script>" not in bench._repr_html_()
    assert "&lt;script&gt;" in bench._repr_html_()


def test_the_text_names_folder_and_size(bench_folder):
    folder = bench_folder()
    assert repr(unseen.load_bench(folder)) == f"BenchResult({str(folder)!r}, 36 of 36 runs)"


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"has no bench\.toml: give the folder that 'unseen bench' wrote"):
        unseen.load_bench(tmp_path)
