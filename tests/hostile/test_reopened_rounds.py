"""A round of secure summation repeated after a crash, with real coordinator and sites (P2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_sites import LoopbackGrid, make_images, tiny_job

from unseen.callbacks.base import Callback
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.errors import UnseenError
from unseen.runner.run import RunResult
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records

SITES = ("a", "b", "c", "d", "held")


class Crash(Callback):
    """Ends the coordinator after a round's sum was opened and before its checkpoint."""

    def on_record(self, record: Record) -> None:
        if record["event"] == "round":
            raise KeyboardInterrupt


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return make_images(tmp_path / "pictures", sites=SITES)


@pytest.fixture
def grid(pictures: Path, tmp_path: Path) -> LoopbackGrid:
    return LoopbackGrid(pictures, tmp_path / "sites", SITES)


def go(grid: LoopbackGrid, pictures: Path, out: Path, **more: Any) -> RunResult:
    return coordinate(
        grid,  # type: ignore[arg-type]
        tiny_job(pictures, protect="secure-sum", rounds=2),
        out=out,
        terms=RoundPolicy(deadline=30.0),
        **{"resume": False, "callbacks": Callback(), **more},
    )


def lose_update_of(lost: str) -> Any:
    def spoil(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if site == lost and question.header["ask"] == "train":
            return SiteMessage({"site": site, "error": "the line was cut"})
        return answer

    return spoil


def test_a_round_opened_before_a_crash_is_not_opened_without_a_site(
    grid: LoopbackGrid, pictures: Path, tmp_path: Path
) -> None:
    """P2: the difference of the two sums was the lost site's model, with relative error 6.6e-8."""
    with pytest.raises(KeyboardInterrupt):
        go(grid, pictures, tmp_path / "run", callbacks=Crash())
    grid.spoil = lose_update_of("d")
    with pytest.raises(
        UnseenError, match=r"opened before, over other clients than a, b, c:.*start a new run"
    ):
        go(grid, pictures, tmp_path / "run", resume=True)
    grid.spoil = lose_update_of("")
    assert go(grid, pictures, tmp_path / "run", resume=True).values["rounds"] == 2, "d is back: it goes on"


def test_a_round_opened_without_a_site_is_repeated_without_it(
    grid: LoopbackGrid, pictures: Path, tmp_path: Path
) -> None:
    """P2: the same clients as before the crash are served; nobody is asked for another sum."""
    grid.spoil = lose_update_of("d")
    with pytest.raises(KeyboardInterrupt):
        go(grid, pictures, tmp_path / "run", callbacks=Crash())
    go(grid, pictures, tmp_path / "run", resume=True)
    rounds = [each for each in read_records(RunFolder(tmp_path / "run").records) if each["event"] == "round"]
    assert [each["clients"] for each in rounds] == [["a", "b", "c"]] * 2


def test_a_round_opened_without_a_site_is_repeated_without_it_when_it_is_back(
    grid: LoopbackGrid, pictures: Path, tmp_path: Path
) -> None:
    """P2: an honest run goes on: the first sites open their sum, the one that is back is left out."""
    grid.spoil = lose_update_of("d")
    with pytest.raises(KeyboardInterrupt):
        go(grid, pictures, tmp_path / "run", callbacks=Crash())
    grid.spoil = lose_update_of("")
    go(grid, pictures, tmp_path / "run", resume=True)
    records = read_records(RunFolder(tmp_path / "run").records)
    rounds = [each["clients"] for each in records if each["event"] == "round"]
    assert rounds == [["a", "b", "c"], ["a", "b", "c", "d"]]
    assert "left out" in next(each["reason"] for each in records if each.get("client") == "d")


def test_a_sum_over_two_sites_is_not_opened(grid: LoopbackGrid, pictures: Path, tmp_path: Path) -> None:
    """P4: with three sources and one lost, the sum over two was opened."""
    grid.absent = {"d"}
    grid.spoil = lose_update_of("c")
    with pytest.raises(UnseenError, match="2 clients sent a usable update, at least 3 are needed"):
        go(grid, pictures, tmp_path / "run")
