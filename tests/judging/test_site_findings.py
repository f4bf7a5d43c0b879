"""Groups with a floor, and what a site sends, read back at the other end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.data.dataset import Column
from unseen.data.site_data import SiteSamples, select_site
from unseen.data.sources import DataRequest, load_data
from unseen.errors import UnseenError, UsageError
from unseen.judging.judge_sites import open_models
from unseen.judging.judged_model import describe_model
from unseen.judging.judgement import combine_findings
from unseen.judging.site_findings import (
    JudgeTerms,
    SiteFindings,
    judge_site,
    read_group_column,
    shown_groups,
)


@given(sizes=st.lists(st.integers(0, 30), max_size=8), unnamed=st.integers(0, 12), least=st.integers(1, 12))
def test_no_group_and_no_remainder_is_smaller_than_the_floor(sizes, unnamed, least):
    samples = sum(sizes) + unnamed
    shown = shown_groups(np.array(sizes, dtype=np.int64), samples=samples, least=least)
    rest = samples - sum(sizes[number] for number in shown)
    assert all(sizes[number] >= least for number in shown)
    assert rest == 0 or rest >= least or not shown
    large = [number for number, size in enumerate(sizes) if size >= least]
    assert shown == sorted(shown) and set(shown) <= set(large)
    left = samples - sum(sizes[number] for number in large)
    if left == 0 or left >= least:
        assert shown == large


def rows(values, levels):
    return SiteSamples(
        site="a",
        task="classification",
        inputs=np.array(values, dtype=np.float32)[:, None],
        targets=np.zeros(len(values), dtype=np.int64),
        classes=("x",),
        fingerprint="",
        columns=(Column("c", levels),),
    )


def test_groups_are_texts_or_whole_numbers():
    names, group_of = read_group_column(rows([1, 0, np.nan, 1], ("m", "f")), "c")
    assert (names, group_of.tolist()) == (["m", "f"], [1, 0, -1, 1])
    names, group_of = read_group_column(rows([7, 3, np.nan, 7], None), "c")
    assert (names, group_of.tolist()) == (["3", "7"], [1, 0, -1, 1])
    with pytest.raises(UsageError, match="2 different numbers there"):
        read_group_column(rows([0.5, 1.5], None), "c")
    with pytest.raises(UsageError, match="has no such column; it has: c"):
        read_group_column(rows([0.5], None), "other")


@pytest.fixture(scope="module")
def judged(price_runs, prices):
    described = [describe_model(run) for run in price_runs]
    models = open_models([spec for spec, _ in described], [content for _, content in described])
    terms = JudgeTerms.of(models, ("kind", "rooms"))
    data = load_data(DataRequest(str(prices), domain_column="place", target_column="price"))
    found = [
        judge_site(select_site(data, site, source="prices"), models, terms, min_group=5)
        for site in ("north", "south")
    ]
    return terms, found


def test_findings_are_the_same_after_the_journey(judged):
    terms, found = judged
    there = [SiteFindings.read(each.site, terms, each.to_header(), each.to_arrays()) for each in found]
    models = [{"name": "a", "sources": []}, {"name": "b", "sources": []}]
    here, far = (combine_findings(each, terms, models, refused={}, about={}) for each in (found, there))
    assert here.values == far.values
    turned = combine_findings(there[::-1], terms, models, refused={}, about={})
    assert turned.values == here.values
    assert [len(each["groups"]) for each in here.pooled["groups"]] == [2, 4]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header: header.pop("groups"), "other columns"),
        (lambda header: header["groups"].pop(), "other columns"),
        (lambda header: header["groups"][0].update(column="age"), "other columns"),
        (lambda header: header["groups"][0].update(names=["a\nb", "c"]), "unusable names"),
        (lambda header: header["groups"][0].update(names=["flat", "flat"]), "a group twice"),
        (lambda header: header["groups"][0].update(names=["p", "q", "r"]), "of shape"),
        (lambda header: header["groups"][0].update(hidden=-1), "whole number"),
        (lambda header: header.update(min_group=0), "whole number from 1"),
        (lambda header: header.update(min_group=True), "whole number from 1"),
    ],
)
def test_headers_of_another_form_are_refused(judged, change, said):
    terms, (found, _) = judged
    header = found.to_header()
    change(header)
    with pytest.raises(UnseenError, match=said):
        SiteFindings.read("a", terms, header, found.to_arrays())
