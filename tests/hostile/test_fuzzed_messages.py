"""Every kind of message, changed at random places: nothing is uncaught at either end.

Some hundreds here; benchmarks/fuzz_messages.py sends ten thousand and more.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzzed_messages import ReplayGrid, fuzz, fuzz_record, read_or_refuse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judged_sites import ALLOWS, train_two
from tiny_sites import LoopbackGrid, make_images, tiny_job, write_policy

from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.coordinator.judge_federation import JudgeRequest, coordinate_judging
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site_summary import SiteSummary
from unseen.errors import UnseenError
from unseen.judging.judge_sites import JudgeOptions
from unseen.printable import printable
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

ROUNDS = 60


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoopbackGrid, dict[str, SiteMessage]]:
    """The grid of an honest run, and of each kind of question one that site a was asked."""
    folder = tmp_path_factory.mktemp("honest")
    images = make_images(folder / "images")
    grid = LoopbackGrid(images, folder / "sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
        for name, protect in (("plain", "none"), ("sealed", "secure-sum")):
            job = tiny_job(images, rounds=1, batches_per_epoch=1, protect=protect)
            coordinate(grid, job, out=folder / name, resume=False, terms=RoundPolicy(30.0))  # type: ignore[arg-type]
    asked = {question.header["ask"]: question for site, question, _ in reversed(grid.log) if site == "a"}
    assert set(asked) == {"census", "train", "consult", "evaluate"}
    return grid, asked


@pytest.mark.parametrize("method", ["fedavg", "fednova", "mdfl"])
def test_fuzzed_answers_of_two_sites_are_faults_and_the_run_goes_on(
    method: str, images: Path, tmp_path: Path
) -> None:
    """D5: one site ended any run with a malformed answer."""
    lying = [("a", "train"), ("a", "evaluate"), ("held", "evaluate")]
    grid = ReplayGrid(images, tmp_path / "sites", random=Random(7), fuzzed=lying, limit=3 * ROUNDS)
    job = tiny_job(images, method=method, rounds=ROUNDS, batches_per_epoch=1)
    coordinate(grid, job, out=tmp_path / "run", resume=False, terms=RoundPolicy(30.0))  # type: ignore[arg-type]
    records = read_records(RunFolder(tmp_path / "run").records)
    rounds = [each for each in records if each["event"] == "round"]
    assert len(rounds) == ROUNDS
    assert all({"b", "c"} <= set(each["clients"]) for each in rounds)
    faults = [each for each in records if each["event"] == "fault"]
    assert {each["client"] for each in faults} == {"a", "held"}
    assert len(faults) > ROUNDS
    assert all(each["reason"] == printable(each["reason"], longest=1000) for each in faults)
    assert sum(grid.counts.values()) == 3 * ROUNDS


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_a_record_changed_on_the_wire_is_read_or_refused(
    exchanged: tuple[LoopbackGrid, dict[str, SiteMessage]], random: Random
) -> None:
    grid, _ = exchanged
    _, _, answer = random.choice(grid.log)
    read_or_refuse(fuzz_record(answer, random))


@settings(max_examples=150)
@given(st.randoms(use_true_random=False))
def test_a_fuzzed_summary_is_read_or_refused(
    exchanged: tuple[LoopbackGrid, dict[str, SiteMessage]], random: Random
) -> None:
    grid, _ = exchanged
    answer = next(answer for _, question, answer in grid.log if question.header["ask"] == "census")
    changed = fuzz(answer, random).header
    try:
        summary = SiteSummary.from_dict(changed)
    except UnseenError as error:
        assert len(str(error)) < 500
    else:
        assert sum(summary.counts.values()) > 0


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.sampled_from(["census", "train", "consult", "evaluate"]))
def test_a_site_answers_every_fuzzed_request(
    exchanged: tuple[LoopbackGrid, dict[str, SiteMessage]], random: Random, kind: str
) -> None:
    grid, asked = exchanged
    answer = grid.sites[0].answer(fuzz(asked[kind], random))
    if "error" in answer.header:
        assert answer.header["error"] == printable(answer.header["error"], longest=1000)


@pytest.mark.parametrize(("kind", "wanted"), [("census", ("c",)), ("judge", ("a", "b", "c", "held"))])
def test_fuzzed_findings_are_set_aside_and_the_honest_sites_are_judged(
    kind: str, wanted: tuple[str, ...], images: Path, tmp_path: Path
) -> None:
    """N3: no site ends the judgement of all."""
    lying = [(site, kind) for site in ("a", "b", "held")]
    grid = ReplayGrid(images, tmp_path / "sites", random=Random(3), fuzzed=lying, limit=60)
    for site in grid.sites:
        write_policy(site.home, ALLOWS)
    models = tuple(map(str, train_two(images, tmp_path / "runs")))
    request = JudgeRequest(models, JudgeOptions(threads=1), sites=wanted)
    set_aside = 0
    while sum(grid.counts.values()) < 60:
        found = coordinate_judging(grid, request, out=tmp_path / "out", terms=RoundPolicy(30.0))  # type: ignore[arg-type]
        assert "c" in found.sites
        reasons = found.values["refused"]
        if kind == "judge":  # in the census a site may give another name
            assert reasons.keys() <= {"a", "b", "held"}
        assert all(reason == printable(reason, longest=1000) for reason in reasons.values())
        set_aside += len(reasons)
    assert set_aside > 20
