"""The whole protocol between real coordinator and sites; only Flower's transport is replaced by calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_sites import QUICK, TINY, LoopbackGrid, tiny_job, write_policy

from unseen.calibration import Measurement
from unseen.callbacks.base import Callback, StopTrainingError
from unseen.config import RunConfig
from unseen.deploy import site_summary as census
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.errors import UnseenError, UsageError
from unseen.methods import METHODS
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records

NOT_POOLED = sorted(name for name in METHODS if METHODS[name].topology != "pooled")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


def go(
    grid: LoopbackGrid,
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    callbacks: Callback | None = None,
    names: dict[str, str] | None = None,
    **terms: Any,
) -> RunResult:
    terms = {"deadline": 30.0, **terms}
    return coordinate(
        grid,  # type: ignore[arg-type]
        config,
        out=out,
        resume=resume,
        terms=RoundPolicy(**terms),
        callbacks=callbacks or Callback(),
        names=names,
    )


def weights(out: Path) -> torch.Tensor:
    return Checkpoint.load(RunFolder(out).checkpoint).weights


def faults(out: Path) -> list[tuple[int, str, str]]:
    records = read_records(RunFolder(out).records)
    return [(r["round"], r["client"], r["reason"]) for r in records if r["event"] == "fault"]


def same_as_on_one_machine(grid: LoopbackGrid, config: RunConfig, tmp_path: Path) -> None:
    there = go(grid, config, tmp_path / "there")
    here = run(config, out=tmp_path / "here")
    assert torch.equal(weights(tmp_path / "there"), weights(tmp_path / "here"))
    assert there.values["metrics"] == here.values["metrics"]
    assert (there.values["bytes_up"], there.values["bytes_down"]) == (
        here.values["bytes_up"],
        here.values["bytes_down"],
    )


@pytest.mark.parametrize("choice", ["frozen", "pooled"])
def test_sites_treat_batch_norm_as_one_machine_does(
    choice: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    config = tiny_job(images, model="test_resnet", rounds=2, batches_per_epoch=1, batch_norm=choice)
    same_as_on_one_machine(grid, config, tmp_path)


@pytest.mark.parametrize("method", NOT_POOLED)
def test_every_method_gives_the_same_weights_as_on_one_machine(
    method: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    if METHODS[method].of_single_samples:
        for site in grid.sites:
            write_policy(site.home, f"{TINY}samples = true\n")
    clip = {"model": "clip-tiny", "weights": "random"} if METHODS[method].needs_texts else {}
    config = tiny_job(images, method=method, settings=QUICK.get(method, {}), rounds=2, **clip)
    if METHODS[method].domains_per_client > 1:
        with pytest.raises(UsageError, match=f"{method} compares the domains.* a site holds a single one"):
            go(grid, config, tmp_path / "run")
        return
    same_as_on_one_machine(grid, config, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "iid", "clients_per_domain": 2},
        {"partition": "dirichlet", "clients_per_domain": 2, "seed": 3},
        {"group_pattern": r"^(\d+)", "test": 0.0, "seed": 3},
        {
            "group_pattern": r"^(\d+)",
            "partition": "dirichlet",
            "clients_per_domain": 2,
            "samples_per_domain": 18,
            "seed": 3,
            "test": 0.2,
        },
        {"fraction": 0.5, "rounds": 4},
        {"sources": ("a", "c")},
        {"update_dtype": "float16"},
        {"update_dtype": "bfloat16"},
        {"evaluate_every": 2},
        {"hold_out": ("held", "c")},
        {"validate_on": ("c",)},
        {"protect": "secure-sum", "protect_settings": {"batch_seed": "run"}},
        {"head": "ridge", "rounds": 2, "lr": 0.001},
        {
            "head": "class-means",
            "rounds": 1,
            "protect": "secure-sum",
            "protect_settings": {"batch_seed": "run"},
            "lr": 0.001,
        },
        {
            "rounds": 3,
            "schedule": "plateau",
            "schedule_settings": {"patience": 0, "threshold": 0.9},
            "sharpness": "sam",
            "head_lr": 2.0,
        },
        {
            "rounds": 4,
            "server_lr": 0.7,
            "average": "swad",
            "average_settings": {"n_converge": 1, "n_tolerance": 2},
            "patience": 2,
        },
        {"rounds": 3, "optimiser": "adam", "lr": 0.001, "keep_optimizer_state": True},
        {"method": "ppdg", "weighting": "samples"},
        {"train": "head.*"},
        {"model": "mini-vit", "train": "lora", "lora_rank": 2},
        {"model": "mini-vit", "train": "lora", "lora_rank": 2, "lora_average": "products"},
    ],
    ids=str,
)
def test_every_way_to_deal_and_send_gives_the_same_weights(
    changes: dict[str, Any], grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    if pattern := changes.get("group_pattern"):
        for site in grid.sites:
            write_policy(site.home, f"{TINY}group_patterns = ['{pattern}']\n")
    same_as_on_one_machine(grid, tiny_job(images, **{"rounds": 2, "batch_size": 2, **changes}), tmp_path)


def test_the_held_out_site_is_never_asked_to_train_and_sends_sums_only(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    go(grid, tiny_job(images, method="csac", settings=QUICK["csac"]), tmp_path / "run")
    asked = [(question.header["ask"], answer) for site, question, answer in grid.log if site == "held"]
    assert {what for what, _ in asked} == {"census", "evaluate"}
    details = {(f"detail:{name}", array.shape) for name, array in Measurement("classes").zeros(3).items()}
    for what, answer in asked:
        shapes = {(name.partition("/")[2], array.shape) for name, array in answer.arrays.items()}
        plain = {("confusion", (3, 3)), ("loss", (1,))} if what == "evaluate" else set()
        assert shapes in (plain, plain | details)
    assert shapes == plain | details, "only the evaluation at the end is in detail"


def test_calibration_is_that_of_one_machine_to_the_last_digits(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    there = go(grid, tiny_job(images, calibrate="vector"), tmp_path / "there")
    here = run(tiny_job(images, calibrate="vector"), out=tmp_path / "here")
    for key in ("details", "calibration", "conformal"):
        assert there.values[key] == here.values[key]
    files = [RunFolder(each.folder).calibration.read_bytes() for each in (there, here)]
    assert files[0] == files[1]


def test_a_site_that_lists_what_may_leave_keeps_the_details_and_the_run_ends_well(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    kinds = ["model weights", "number of samples", "batch-norm statistics"]
    for site in grid.sites:
        if site.name == "held":
            write_policy(site.home, f"{TINY}values = {json.dumps(kinds)}\n")
    found = go(grid, tiny_job(images), tmp_path / "run")
    final = read_records(RunFolder(tmp_path / "run").records)[-1]
    with_details = {score["domain"] for score in final["scores"] if "details" in score}
    assert with_details and "held" not in with_details
    assert found.metrics["target"]["accuracy"] >= 0


def test_memory_lies_at_the_sites_and_nowhere_else(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    go(grid, tiny_job(images, method="scaffold"), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").client_states.exists()
    kept = sorted(path.name for path in (tmp_path / "sites").rglob("*.safetensors"))
    assert [name for name in kept if name.endswith("@3.safetensors")] == [
        f"{site}@3.safetensors" for site in "abc"
    ]
    assert not any("@1." in name for name in kept)


class StopAfter(Callback):
    """Ends the process's work, as a crash would, once a round's record is written."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_record(self, record: Record) -> None:
        if record["event"] == "round" and record["round"] == self.round:
            raise StopTrainingError


@pytest.mark.parametrize("method", ["fedavg", "csac", "fedadg", "scaffold", "cwt"])
def test_a_killed_coordinator_goes_on_from_its_checkpoint(
    method: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    config = tiny_job(images, method=method, settings=QUICK.get(method, {}))
    with pytest.raises(StopTrainingError):
        go(grid, config, tmp_path / "run", callbacks=StopAfter(2))
    grid.sites = [replace(site) for site in grid.sites]
    go(grid, config, tmp_path / "run", resume=True)
    run(config, out=tmp_path / "here")
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "here"))


def test_a_run_is_not_continued_on_other_data(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    config = tiny_job(images)
    with pytest.raises(StopTrainingError):
        go(grid, config, tmp_path / "run", callbacks=StopAfter(2))
    (images / "b" / "x" / "0.png").unlink()
    go(grid, config, tmp_path / "run", resume=True)
    assert faults(tmp_path / "run")[0] == (2, "b", "not connected")


def spoil_update(change: Any, *, site: str = "b", round: int = 2) -> Any:
    def spoil(name: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        if name != site or question.header.get("round") != round:
            return answer
        return change(answer)

    return spoil


def with_weights(value: Any) -> Any:
    return lambda answer: SiteMessage(
        answer.header, {**answer.arrays, "b/weights": value(answer.arrays["b/weights"])}
    )


BAD = {
    "NaN": (with_weights(lambda w: w * np.float32("nan")), "NaN"),
    "infinity": (with_weights(lambda w: w + np.float32("inf")), "infinite"),
    "shape": (with_weights(lambda w: w[:-1]), "numbers where the model has"),
    "dtype": (with_weights(lambda w: w.astype(np.float64)), "float64"),
    "layout": (
        lambda answer: SiteMessage({**answer.header, "layout": "another"}, answer.arrays),
        "layout another",
    ),
    "nothing": (lambda answer: SiteMessage({"layout": answer.header["layout"]}), "unreadable"),
    "raised": (lambda answer: SiteMessage({"error": "ValueError: the disk is full"}), "the disk is full"),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_unusable_update_is_set_aside_and_both_sides_are_told(
    kind: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    change, said = BAD[kind]
    grid.spoil = spoil_update(change)
    go(grid, tiny_job(images), tmp_path / "run")
    ((number, client, reason),) = faults(tmp_path / "run")
    assert (number, client) == (2, "b")
    assert said in reason
    notices = [(site, q.header["notice"]) for site, q, _ in grid.log if "notice" in q.header]
    if kind != "raised":
        assert notices == [("b", f"round 2: the update of b was set aside: {reason}")]
    rounds = [
        r["clients"] for r in read_records(RunFolder(tmp_path / "run").records) if r["event"] == "round"
    ]
    assert rounds == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]


class Absence(Callback):
    """Takes a site away after one round and brings it back after another."""

    def __init__(self, grid: LoopbackGrid, *, how: str, leaves: int, returns: int) -> None:
        self.grid, self.how, self.leaves, self.returns = grid, how, leaves, returns

    def on_record(self, record: Record) -> None:
        if record["event"] == "evaluation":
            if record["round"] == self.leaves:
                getattr(self.grid, self.how).add("b")
            if record["round"] == self.returns:
                getattr(self.grid, self.how).discard("b")


@pytest.mark.parametrize(
    ("how", "reason"), [("absent", "not connected"), ("silent", "no answer within 0.5 s")]
)
def test_a_round_goes_on_without_an_absent_site_which_comes_back_with_its_memory(
    how: str, reason: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    config = tiny_job(images, method="scaffold", rounds=4)
    callbacks = Absence(grid, how=how, leaves=1, returns=2)
    deadline = 0.5 if how == "silent" else 30.0
    go(grid, config, tmp_path / "run", callbacks=callbacks, deadline=deadline, min_sites=2)
    assert faults(tmp_path / "run") == [(2, "b", reason), (2, "b", f"was not evaluated: {reason}")]
    asked = [q.header["versions"] for site, q, _ in grid.log if site == "b" and q.header["ask"] == "train"]
    assert asked == [{}, {"b": 1}, {"b": 3}]


def test_too_few_sites_end_the_run_and_it_can_go_on(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    config = tiny_job(images)
    grid.spoil = spoil_update(lambda answer: SiteMessage({"error": "out of order"}))
    with pytest.raises(UnseenError, match=r"2 of 3 sites .* b: out of order; .* --resume"):
        go(grid, config, tmp_path / "run", min_sites=3)
    grid.spoil = lambda site, question, answer: answer
    go(grid, config, tmp_path / "run", resume=True, min_sites=3)
    run(config, out=tmp_path / "here")
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "here"))


def test_a_site_that_never_comes_is_named(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    grid.absent = {"held"}
    with pytest.raises(UnseenError, match="connected: a, b, c; missing: held"):
        go(grid, tiny_job(images), tmp_path / "run", deadline=0.5)


def test_a_site_cannot_take_the_name_of_another(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    names = {str(100 + place): site.name for place, site in enumerate(grid.sites)}
    go(grid, tiny_job(images), tmp_path / "run", names=names)
    with pytest.raises(UnseenError, match=r"held: uses this name, but its key is registered for c"):
        go(grid, tiny_job(images), tmp_path / "posing", names=names | {"103": "c"}, deadline=0.5)


def test_a_site_without_images_is_turned_away_with_its_reason(
    grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    grid.sites[3] = replace(grid.sites[3], data=str(images / "nowhere"))
    with pytest.raises(UnseenError, match=r"refused: held: its data cannot be used"):
        go(grid, tiny_job(images), tmp_path / "run", deadline=0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"method": "deepall"}, "pools all data"), ({"partition": "mixed"}, "several sites")],
)
def test_what_needs_data_in_one_place_is_refused(
    changes: dict[str, Any], said: str, grid: LoopbackGrid, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        go(grid, tiny_job(images, **changes), tmp_path / "run")


def test_no_sample_or_file_name_leaves_a_site(grid: LoopbackGrid, images: Path, tmp_path: Path) -> None:
    result = go(grid, tiny_job(images), tmp_path / "run")
    for _, _, answer in grid.log:
        assert all(array.dtype != np.uint8 for array in answer.arrays.values())
        assert ".png" not in str(answer.header)
    assert {"model weights", census.NAMES, census.SHAPE} <= set(result.values["privacy"])
    assert "png" not in RunFolder(tmp_path / "run").records.read_text(encoding="utf-8")
