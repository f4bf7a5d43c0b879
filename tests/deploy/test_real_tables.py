"""Tables at real Flower processes on loopback: the run of one machine to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from table_sites import make_rows, make_tables, table_job, write_csv
from tiny_sites import SITES, LoopbackGrid
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.site.ledger import Ledger
from unseen.deploy.testing import LocalFederation
from unseen.runner.run import run
from unseen.runner.start_record import TABLE_SUMS
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

pytestmark = pytest.mark.deployment


TERMS = RoundPolicy(deadline=1200.0, min_sites=3)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    folder = tmp_path_factory.mktemp("tables")
    tables = make_tables(folder / "tables")
    with LocalFederation(tables, folder / "federation", suffix=".csv").start(SITES) as running:
        yield running


def test_tables_at_three_sites_give_the_model_of_one_machine(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """Build 7: weights and metrics to the bit; the model predicts from a file; the ledger names the sums."""
    config = table_job(federation.data, sources=SITES[:3])
    ledgers = {site: Ledger(federation.home / site) for site in SITES}
    there = run_on_flower(config, coordinator=federation.coordinator, out=tmp_path / "there", terms=TERMS)
    sent = {site: ledger.new() for site, ledger in ledgers.items()}
    here = run(config, out=tmp_path / "here")
    weights, own = (load_file(RunFolder(each.folder).model) for each in (there, here))
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)
    assert there.values["metrics"] == here.values["metrics"]
    assert there.model.card.encoding == here.model.card.encoding

    for site in ("a", "b", "c"):
        kinds = [kind for line in sent[site] if line["ask"] == "column sums" for kind in line["values"]]
        assert kinds.count(TABLE_SUMS) == 2
    assert not [line for line in sent["held"] if line["ask"] == "column sums"]

    rows = make_rows("held")
    for row in rows:
        del row["target"], row["score"]
    write_csv(tmp_path / "new.csv", rows)
    said = CliRunner().invoke(app, ["predict", str(there.folder), str(tmp_path / "new.csv")])
    assert said.exit_code == 0, said.output
    assert len(said.stdout.strip().splitlines()) == len(rows) + 1


def test_masked_column_sums_are_those_of_one_process_to_the_bit(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """Build 7: under secure-sum masks cancel exactly, so encoding and weights are those of calls."""
    config = table_job(
        federation.data,
        protect="secure-sum",
        protect_settings={"batch_seed": "run"},
        rounds=1,
        sources=SITES[:3],
    )
    there = run_on_flower(config, coordinator=federation.coordinator, out=tmp_path / "there", terms=TERMS)
    grid = LoopbackGrid(federation.data, tmp_path / "sites", suffix=".csv")
    here = coordinate(grid, config, out=tmp_path / "here", resume=False, terms=TERMS)  # type: ignore[arg-type]
    assert there.model.card.encoding == here.model.card.encoding
    weights, own = (load_file(RunFolder(each.folder).model) for each in (there, here))
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)
    start = read_records(RunFolder(there.folder).records)[0]
    left = [entry for entry in start["left"] if entry["kind"] == TABLE_SUMS]
    assert left
    assert all("masked" in entry["protected"] for entry in left)
