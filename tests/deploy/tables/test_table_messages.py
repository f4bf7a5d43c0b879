"""Messages about tables made by hand: what a site answers, and what a coordinator reads of its answers."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from table_sites import make_tables, table_job
from tiny_sites import TINY, write_policy

from unseen.data import Column, DataRequest, load_data
from unseen.data.tables.column_statistics import (
    explain_impossible,
    from_digits,
    from_vector,
    merge_statistics,
    sum_columns,
    to_digits,
    to_vector,
    vector_length,
    without_small_groups,
)
from unseen.data.tables.encoding import TableEncoding
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.job import Job, config_values, for_sites
from unseen.deploy.site.site import Site
from unseen.deploy.site_summary import SiteSummary
from unseen.deploy.tables.column_sums import CENTRES, make_sums_experiment
from unseen.deploy.tables.table_job import read_encoding
from unseen.deploy.tables.table_summary import TableSummary
from unseen.engine import Workspace
from unseen.errors import UnseenError
from unseen.federation import PartitionConfig, SplitFractions, make_federation
from unseen.models import model_digest
from unseen.privacy import make_protection
from unseen.runner.start_record import TABLE_SUMS

SUMS = f"a/extras/{TABLE_SUMS}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    tables = make_tables(tmp_path / "tables")
    found = Site("a", str(tables / "a.csv"), tmp_path / "home")
    write_policy(found.home, TINY)
    return found


def census(site: Site, **changes: Any) -> SiteMessage:
    config = table_job(Path(site.data).parent, **changes)
    return site.answer(SiteMessage({"ask": "census", "config": config_values(for_sites(config))}))


def request(site: Site, *, centres: Any = None, **changes: Any) -> SiteMessage:
    """A request for column sums, made from the rows of all sites; `changes` are in its job."""
    data = load_data(DataRequest(str(Path(site.data).parent / "whole.csv")))
    federation = make_federation(
        data,
        held_out=("held",),
        partition=PartitionConfig(kind="domain"),
        fractions=SplitFractions(validation=0.2),
        seed=0,
    )
    experiment = make_sums_experiment(data, federation, make_protection("none"), columns=data.columns, seed=0)
    module = Workspace(experiment).module
    job = Job(
        config=for_sites(table_job(Path(site.data).parent)),
        run_id="0123456789ab",
        name=data.name,
        domains=data.domains,
        classes=data.classes,
        sources=federation.sources,
        threads=1,
        columns=data.columns,
    )
    weights = torch.cat([value.flatten() for value in module.state_dict().values()]).numpy()
    arrays = {"weights": weights} | ({} if centres is None else {f"received/{CENTRES}": np.asarray(centres)})
    header = {"ask": "train", "round": 1, "clients": ["a"], "versions": {}}
    return SiteMessage(
        {**header, "job": {**job.to_dict(), "layout": model_digest(module), **changes}}, arrays
    )


def test_a_site_answers_with_sums_over_its_training_rows(site: Site) -> None:
    asked = request(site)
    columns = tuple(Column(each["name"], each["levels"]) for each in asked.header["job"]["columns"])
    answer = site.answer(asked)
    assert "error" not in answer.header, answer.header
    found = from_vector(answer.arrays[SUMS], columns, exact=False)
    rows = answer.header["clients"]["a"]["samples"]
    assert 0 < rows < 30
    assert explain_impossible(found, columns, rows=rows) == ""
    assert len(answer.arrays[SUMS]) == vector_length(columns, exact=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": [{"name": "age", "levels": ["x"]}]}, "column 'age' holds numbers"),
        ({"columns": [{"name": "nowhere", "levels": None}]}, "'nowhere'"),
        ({"columns": [{"name": "age"}, {"name": "age"}]}, "names a column twice"),
        ({"columns": "age"}, "the job's columns cannot be read"),
        ({"columns": [7]}, "a column of the job cannot be read"),
        ({"columns": [{"name": "ward", "levels": [1]}]}, "a column of the job cannot be read"),
        ({"columns": []}, "its data is a table, the job is about images"),
        ({"columns": [], "encoding": {}}, "the encoding of the table cannot be read"),
        ({"columns": [], "encoding": [1]}, "the encoding of the table cannot be read"),
        ({"classes": ["low", "mid"]}, "class"),
        ({"domains": ["x", "y"]}, "has no part in this run"),
        ({"run_id": "../../etc"}, "run"),
    ],
    ids=str,
)
def test_a_site_refuses_odd_jobs_about_tables_in_one_line(
    site: Site, changes: dict[str, Any], said: str
) -> None:
    answer = site.answer(request(site, **changes))
    assert said in answer.header["error"]
    assert "Error:" not in answer.header["error"]
    assert not answer.arrays


@pytest.mark.parametrize("centres", [[math.nan] * 6, [0.0], [[0.0] * 6], [math.inf] * 6], ids=str)
def test_a_site_refuses_centres_that_are_none(site: Site, centres: Any) -> None:
    answer = site.answer(request(site, centres=centres))
    assert "one finite number per column" in answer.header["error"]


def test_images_do_not_answer_a_job_about_tables(site: Site, images: Path) -> None:
    other = Site("a", str(images / "a"), site.home)
    assert "error" in other.answer(request(site)).header


def test_the_census_names_columns_and_never_how_often_a_text_occurs(site: Site) -> None:
    answer = census(site)
    found = SiteSummary.from_dict(answer.header).table
    assert found is not None
    assert [column.name for column in found.columns] == ["age", "ward", "income", "joined", "signal"]
    assert found.columns[1].levels == ("north", "only a", "south")
    assert set(answer.header["table"]) == {"columns", "unused", "numeric_target"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
summaries = st.fixed_dictionaries(
    {},
    optional={
        "columns": values
        | st.lists(st.fixed_dictionaries({"name": values}, optional={"levels": values}), max_size=3),
        "unused": values | st.lists(st.text(max_size=3), max_size=3),
        "numeric_target": values,
    },
)


@settings(max_examples=300, deadline=None)
@given(values | summaries, st.lists(st.text(max_size=4), max_size=3))
def test_any_summary_of_a_table_is_read_or_refused(sent: Any, classes: list[str]) -> None:
    try:
        found = TableSummary.from_dict(sent, tuple(classes))
    except UnseenError as error:
        assert str(error).startswith("sent an unusable summary of its data")
    else:
        assert found is None or found.to_dict().keys() == {"columns", "unused", "numeric_target"}


def test_summaries_are_bounded() -> None:
    fine = {"columns": [{"name": "x", "levels": None}], "unused": [], "numeric_target": False}
    assert TableSummary.from_dict(fine, ()) == TableSummary((Column("x"),))
    many = [{"name": f"c{i}", "levels": None} for i in range(20_001)]
    for name, wrong in {
        "columns": many,
        "levels": [{"name": "x", "levels": [str(i) for i in range(101)]}],
        "length": [{"name": "x" * 256, "levels": None}],
        "line": [{"name": "x\ny", "levels": None}],
        "twice": [{"name": "x"}, {"name": "x"}],
    }.items():
        with pytest.raises(UnseenError, match="unusable summary"):
            TableSummary.from_dict({**fine, "columns": wrong}, ())
        assert name
    with pytest.raises(UnseenError, match="its target cannot be"):
        TableSummary.from_dict({**fine, "numeric_target": True}, ("one",))


ENCODING = TableEncoding(
    columns=(Column("x"), Column("w", ("p", "q"))),
    means=(1.5, 0.0),
    stds=(2.0, 1.0),
    seen=(True, True),
    flagged=(True, False),
    known=((), (0, 1)),
)


def test_an_encoding_survives_the_message_to_the_bit_and_odd_ones_are_refused() -> None:
    described = ENCODING.to_dict()
    assert read_encoding(described) == ENCODING
    for key, wrong in {
        "means": (math.nan, 0.0),
        "stds": (0.0, 1.0),
        "seen": (True,),
        "known": ((), (0, 2)),
        "flagged": None,
        "statistics": "other",
        "columns": 3,
        "target_std": "x",
        "unknown": 1,
    }.items():
        with pytest.raises(UnseenError, match="cannot be read"):
            read_encoding({**copy.deepcopy(described), key: wrong})


@settings(max_examples=200, deadline=None)
@given(values)
def test_any_encoding_is_read_or_refused(sent: Any) -> None:
    with pytest.raises(UnseenError):
        read_encoding(sent)


reals = st.floats(-(2.0**120), 2.0**120, allow_nan=False, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(npst.arrays(np.float64, (3, 4), elements=reals))
def test_digits_add_up_without_rounding(sent: Any) -> None:
    """The sum of digits over clients is the exact sum of what each client's digits hold, rounded once."""
    exact = [sum(Fraction(int(Fraction(x) * 2**120), 2**120) for x in column) for column in sent.T.tolist()]
    added = sum(to_digits(row) for row in sent)
    assert from_digits(added).tolist() == [float(each) for each in exact]


def test_sums_that_no_digits_hold_are_refused() -> None:
    for value in (2.0**140, -(2.0**200), math.inf, math.nan):
        with pytest.raises(UnseenError, match="too large to be added up"):
            to_digits(np.array([value]))


@settings(max_examples=100, deadline=None)
@given(
    npst.arrays(np.float64, (12, 2), elements=st.floats(-1e6, 1e6) | st.just(math.nan)),
    npst.arrays(np.int64, 12, elements=st.integers(0, 2)),
    st.integers(1, 5),
)
def test_vectors_of_clients_hold_their_statistics_and_no_small_group(
    numbers: Any, codes: Any, least: int
) -> None:
    columns = (Column("x"), Column("w", ("p", "q", "r")))
    rows = np.column_stack([numbers[:, 0], codes.astype(np.float64), numbers[:, 1]])
    kept = without_small_groups(rows, columns, least)
    found = sum_columns(kept, columns)
    assert explain_impossible(found, columns, rows=12) == ""
    assert all(count == 0 or count >= least for count in found["levels:w"])
    assert all(count == 0 or count >= least for count in found["count"][[0, 2]])
    halves = [sum_columns(part, columns) for part in (kept[:5], kept[5:])]
    for exact in (False, True):
        sent = [to_vector(each, columns, exact=exact) for each in halves]
        assert all(len(each) == vector_length(columns, exact=exact) for each in sent)
        merged = from_vector(sent[0] + sent[1], columns, exact=exact)
        for key, value in merge_statistics(halves).items():
            np.testing.assert_allclose(merged[key], value, rtol=1e-12, atol=1e-9)
