"""A lying site costs its own part of a round and nothing else: its answers become faults, the run goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lying_sites import CENSUS, EXTRAS, LIAR, SEALED, SUMS, UPDATES, array, header, tell
from tiny_sites import TINY, LoopbackGrid, make_images, tiny_job, write_policy

from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site_summary import SiteSummary
from unseen.errors import UnseenError
from unseen.printable import printable
from unseen.runner.run import RunResult
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records


def run_with(grid: LoopbackGrid, images: Path, out: Path, **changes: Any) -> RunResult:
    changes = {"batches_per_epoch": 1, **changes}
    terms = RoundPolicy(deadline=changes.pop("deadline", 30.0))
    return coordinate(grid, tiny_job(images, **changes), out=out, resume=False, terms=terms)  # type: ignore[arg-type]


def records(out: Path, event: str) -> list[Record]:
    return [each for each in read_records(RunFolder(out).records) if each["event"] == event]


@pytest.fixture(scope="module")
def lies_told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Two runs with another lie in every round: of site a about its updates, of the held-out about scores."""
    folder = tmp_path_factory.mktemp("lies")
    images = make_images(folder / "images")
    told: dict[str, dict[str, str]] = {}
    for kind, lies, ask, site in (
        ("updates", UPDATES, "train", LIAR),
        ("sums", SUMS, "evaluate", "held"),
    ):
        grid = LoopbackGrid(images, folder / f"sites of {kind}")
        names = list(lies)
        tell(grid, {number: lies[name][0] for number, name in enumerate(names, start=1)}, ask=ask, site=site)
        rounds = len(names) + 1
        run_with(
            grid,
            images,
            folder / kind,
            rounds=rounds,
            method="moon",
            evaluate_every=1 if kind == "sums" else rounds,
        )
        by_round = {each["round"]: each for each in records(folder / kind, "fault")}
        assert all(each["client"] == site for each in by_round.values()), by_round
        told[kind] = {
            name: by_round.get(number, {}).get("reason", "") for number, name in enumerate(names, start=1)
        }
        took_part = [each["clients"] for each in records(folder / kind, "round")]
        assert all({"b", "c"} <= set(clients) for clients in took_part)
        assert took_part[-1] == ["a", "b", "c"], "the honest answer of the last round counts"
        assert torch.isfinite(Checkpoint.load(RunFolder(folder / kind).checkpoint).weights).all()
    return told


@pytest.mark.parametrize("lie", UPDATES)
def test_a_lie_about_an_update_is_a_fault_of_its_site(lie: str, lies_told: dict[str, dict[str, str]]) -> None:
    """D4, D5, D6, D8: 20 of these ended the run, and samples=1e18 owned the model without a fault."""
    reason = lies_told["updates"][lie]
    assert UPDATES[lie][1] in reason
    assert reason == printable(reason)
    assert len(reason) < 500


@pytest.mark.parametrize("lie", SUMS)
def test_a_lie_about_scores_is_a_fault_of_its_site(lie: str, lies_told: dict[str, dict[str, str]]) -> None:
    """D7: a held-out site gave itself an accuracy of 1 with a forged tally."""
    reason = lies_told["sums"][lie]
    assert reason.startswith("was not evaluated: ")
    assert SUMS[lie][1] in reason


@pytest.mark.parametrize("lie", CENSUS)
def test_a_lie_about_its_data_turns_a_site_away(
    lie: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """D5: counts of 1e12 asked the coordinator for 7 TiB of memory."""
    change, reason = CENSUS[lie]
    tell(grid, {0: change}, ask="census")
    with pytest.raises(UnseenError, match=f"refused: .*({reason})") as caught:
        run_with(grid, images, tmp_path / "run", sources=("a", "b"), deadline=0.1)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("lie", EXTRAS)
def test_a_lie_beside_the_weights_is_a_fault_of_its_site(
    lie: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    """D4: one site that says it took few steps would count for more than all others."""
    method, change, said = EXTRAS[lie]
    for site in grid.sites:
        write_policy(site.home, f"{TINY}samples = true\n")
    tell(grid, {1: change}, ask="train")
    run_with(grid, images, tmp_path / "run", rounds=1, method=method)
    (fault,) = records(tmp_path / "run", "fault")
    assert fault["client"] == LIAR
    assert said in fault["reason"]


def test_a_site_with_more_classes_than_others_only_widens_the_model(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    many = [*"xyz", *map(str, range(50))]
    tell(grid, {0: header(lambda h: h.update(classes=many))}, ask="census")
    result = run_with(grid, images, tmp_path / "run", rounds=1)
    assert result.values["metrics"]


@pytest.mark.parametrize("lie", SEALED)
def test_a_lie_under_secure_summation_is_a_fault_of_its_site(lie: str, images: Path, tmp_path: Path) -> None:
    """D5: any malformed answer of secure summation ended the run."""
    step, change, said = SEALED[lie]
    (images / "d").symlink_to(images / "c")
    grid = LoopbackGrid(images, tmp_path / "sites", names=("a", "b", "c", "d", "held"))
    answers = [0]

    def spoil(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if name != LIAR or question.header["ask"] != ("train" if step == "train" else "consult"):
            return answer
        answers[0] += 1
        return change(answer) if answers[0] == 1 else answer

    grid.spoil = spoil
    run_with(grid, images, tmp_path / "run", rounds=1, protect="secure-sum")
    faults = records(tmp_path / "run", "fault")
    assert {fault["client"] for fault in faults} == {LIAR}
    assert said in faults[0]["reason"]
    (round,) = records(tmp_path / "run", "round")
    assert round["clients"] == ["b", "c", "d"]


def test_text_of_the_coordinator_reaches_the_log_of_a_site_on_one_line(
    grid: LoopbackGrid, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D8: ESC and newline in a notice came out raw in the site's log."""
    notice = "all is well\n2026 root: \x1b[2J\u202egnihton" + "x" * 10**6
    with caplog.at_level(logging.WARNING):
        grid.sites[0].answer(SiteMessage({"ask": "nothing", "notice": notice}))
    said = caplog.records[0].getMessage()
    assert said == printable(said, longest=len(said))
    assert len(said) < 1000


def test_a_summary_that_is_true_is_read_as_it_was_written(images: Path, grid: LoopbackGrid) -> None:
    summary = SiteSummary.of(grid.sites[0].samples(tiny_job(images)))
    assert SiteSummary.from_dict(summary.to_dict()) == summary


def test_an_honest_run_has_no_fault(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    tell(grid, {1: array("a/weights", lambda weights: weights)}, ask="train")
    run_with(grid, images, tmp_path / "run", rounds=2)
    assert records(tmp_path / "run", "fault") == []
