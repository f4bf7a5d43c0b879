"""Tables at real Flower processes on loopback: the run of one machine to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from table_sites import make_rows, make_tables, table_job, write_csv
from tiny_sites import SITES
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.deploy.coordinator import RoundPolicy
from unseen.deploy.ledger import Ledger
from unseen.deploy.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.runner.run import run
from unseen.runner.start_record import TABLE_SUMS
from unseen.runs.folder import RunFolder

pytestmark = pytest.mark.deployment


def test_tables_at_three_sites_give_the_model_of_one_machine(tmp_path: Path) -> None:
    """Build 7: weights and metrics to the bit; the model predicts from a file; the ledger names the sums."""
    tables = make_tables(tmp_path / "tables")
    config = table_job(tables)
    with LocalFederation(tables, tmp_path / "federation", suffix=".csv") as federation:
        ledgers = {site: Ledger(tmp_path / "federation" / site) for site in SITES}
        federation.start(SITES)
        there = run_on_flower(
            config,
            coordinator=federation.coordinator,
            out=tmp_path / "there",
            terms=RoundPolicy(deadline=1200.0, min_sites=3),
        )
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
