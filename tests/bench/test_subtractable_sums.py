"""A bench warns where its runs, taken together, undo a protection."""

from __future__ import annotations

import pytest

from unseen.bench.grid import Grid
from unseen.bench.subtractable_sums import warn_of_differences

DOMAINS = ("a", "b", "c", "d", "e")


def grid(protect="secure-sum", *, hold_out=("a", "b"), **more):
    common = {"data": "tiny", "protect": protect}
    return Grid(common=common, methods={"fedavg": {}}, hold_out=hold_out, **more).on(DOMAINS)


@pytest.mark.parametrize("protect", ["secure-sum", "encrypted"])
def test_holding_out_domains_in_turn_warns_once_per_method(protect):
    """P3: six runs of one seed gave six sums with six unknowns."""
    (line,) = warn_of_differences(grid(protect))
    assert line.startswith("fedavg: ") and protect in line and "\n" not in line


def test_choosing_the_round_by_leaving_domains_out_warns_too():
    """P3: its folds are runs of one seed over different clients."""
    assert warn_of_differences(grid(hold_out=("a",), selection="lodo"))
    assert not warn_of_differences(grid(hold_out=("a",)))


@pytest.mark.parametrize("protect", ["none", "dp-samples"])
def test_protections_that_hide_nothing_in_sums_need_no_warning(protect):
    assert not warn_of_differences(grid(protect))
