"""Real Flower processes on loopback, with TLS and keys: few tests, since starting takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tiny_sites import QUICK, SITES, make_images, tiny_job

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.identity.keys import fingerprint, site_key
from unseen.deploy.identity.peer_keys import PEERS
from unseen.deploy.testing import LocalFederation
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

pytestmark = pytest.mark.deployment
METHODS = ("fedavg", "csac", "ppdg", "fedadg", "mdfl")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    folder = tmp_path_factory.mktemp("processes")
    with LocalFederation(make_images(folder / "images"), folder / "federation").start(SITES) as running:
        yield running


def weights(out: Path) -> torch.Tensor:
    return Checkpoint.load(RunFolder(out).checkpoint).weights


def test_five_methods_give_the_weights_of_one_machine(federation: LocalFederation, tmp_path: Path) -> None:
    configs = {
        method: tiny_job(
            federation.data,
            method=method,
            settings=QUICK.get(method, {}),
            evaluate_every=3,
            sources=SITES[:3],
        )
        for method in METHODS
    }

    def train(method: str) -> RunResult:
        return run_on_flower(
            configs[method],
            coordinator=federation.coordinator,
            out=tmp_path / method,
            terms=RoundPolicy(deadline=1200.0, min_sites=3),
        )

    with ThreadPoolExecutor(len(METHODS)) as pool:
        there = dict(zip(METHODS, pool.map(train, METHODS), strict=True))
    for method in METHODS:
        here = run(configs[method], out=tmp_path / f"{method}-here")
        assert torch.equal(weights(tmp_path / method), weights(here.folder)), method
        assert there[method].values["metrics"] == here.values["metrics"], method
        assert (tmp_path / method / "report.html").exists()


def test_sites_that_know_each_other_sign_the_keys_of_every_round(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """Section 4: round keys are signed with the keys that the sites registered with the SuperLink."""
    homes = {site: federation.home / site for site in SITES}
    lines = [f'{site} = "{fingerprint(site_key(home, site).line)}"' for site, home in homes.items()]
    for home in homes.values():
        (home / PEERS).write_text("\n".join(["[sites]", *lines, ""]), encoding="utf-8")
    run_on_flower(
        tiny_job(federation.data, protect="secure-sum", rounds=1, sources=SITES[:3]),
        coordinator=federation.coordinator,
        out=tmp_path / "run",
        terms=RoundPolicy(deadline=600.0, min_sites=3),
    )
    (record,) = (
        each for each in read_records(RunFolder(tmp_path / "run").records) if each["event"] == "round"
    )
    kinds = {line["kind"]: line["from"] for line in record["left"]}
    assert record["clients"] == ["a", "b", "c"] and kinds["signature of the public keys"] == "all"
