"""Judging at three real Flower sites under TLS: equals this machine to the bit; policies, floor, ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from judged_sites import ALLOWS, train_two
from tiny_sites import make_images, write_policy
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.judge_federation import JudgeRequest, judge_on_flower
from unseen.deploy.site.ledger import Ledger
from unseen.deploy.site.ledger_chain import verify_ledger
from unseen.deploy.testing import LocalFederation
from unseen.errors import UnseenError
from unseen.judging import judge, load_judgement
from unseen.judging.judge_sites import JudgeOptions
from unseen.judging.site_findings import LEFT

pytestmark = pytest.mark.deployment
SITES = ("a", "b", "held")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    folder = tmp_path_factory.mktemp("judging")
    images = make_images(folder / "images", sites=SITES)
    with LocalFederation(images, folder / "federation", policy=ALLOWS).start(SITES) as running:
        yield running


@pytest.fixture(scope="module")
def runs(federation: LocalFederation, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return train_two(federation.data, tmp_path_factory.mktemp("runs"))


def test_three_sites_equal_one_machine_to_the_bit_and_send_metrics_only(
    federation: LocalFederation, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    ledgers = {site: Ledger(federation.home / site) for site in SITES}
    out = tmp_path / "judged"
    words = ["judge", *map(str, runs), "--coordinator", str(federation.coordinator.home), "--threads", "1"]
    words += [word for site in SITES for word in ("--domain", site)]
    said = CliRunner().invoke(app, [*words, "--out", str(out), "--json"], catch_exceptions=False)
    assert said.exit_code == 0
    there = json.loads(said.stdout)
    here = judge(*runs, data=federation.data, threads=1).values
    for part in ("sites", "pooled", "worst", "models", "classes", "left"):
        assert there[part] == here[part], part
    assert there["refused"] == {} and there["where"] == "Flower"
    assert load_judgement(out).values["sites"] == here["sites"]
    assert there["sites"]["b"]["per_class"]["y"] == 0
    assert "McNemar" in Path(there["page"]).read_text(encoding="utf-8")

    for site in SITES:
        lines = ledgers[site].new()
        assert [line["ask"] for line in lines] == ["census", "judge"]
        assert set(lines[0]["values"]) == {"site's name, number of samples of each class"}
        assert set(lines[1]["values"]) == {LEFT, "site's name, smallest group, names of groups"}
        assert lines[1]["run"].startswith("judge-")
        assert lines[1]["bytes"] < 60_000 and not lines[1].get("error")
        home = federation.home / site
        check = verify_ledger(home, public=(home / f"{site}.pub").read_text("utf-8").rsplit(" ", 1)[0])
        assert check.problem == "" and check.signed == check.lines


def test_refusals_and_unknown_models_are_told(
    federation: LocalFederation, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    request = JudgeRequest((str(runs[0]),), JudgeOptions(threads=1), sites=SITES)
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no model")
    options = {"coordinator": federation.coordinator, "terms": RoundPolicy(deadline=120.0)}
    with pytest.raises(UnseenError, match=r"junk\.onnx is no ONNX model"):
        judge_on_flower(JudgeRequest((str(junk),), JudgeOptions()), out=tmp_path / "none", **options)
    try:
        write_policy(federation.home / "a", "min_group = 5\n")
        write_policy(federation.home / "b", ALLOWS.replace("min_group = 5", "min_group = 9"))
        found = judge_on_flower(request, out=tmp_path / "judged", **options)
    finally:
        for site in SITES:
            write_policy(federation.home / site, ALLOWS)
    assert list(found.sites) == ["b", "held"]
    assert "[judge] allow = false" in found.values["refused"]["a"]
    assert found.sites["b"]["min_group"] == 9
    assert found.sites["b"]["per_class"] == {"x": 0, "y": 0, "z": 10}
    last = json.loads((federation.home / "a" / "sent.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert "refused by the site's policy" in last["error"]
