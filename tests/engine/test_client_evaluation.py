"""`--evaluate-clients`: each client's own model on every domain, before it is merged (CSAC, figure 9 a-c)."""

from __future__ import annotations

import pytest
import torch

from unseen.config import RunConfig
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.report.figures import draw_figures
from unseen.runner.prepare import check_names
from unseen.runner.run import run
from unseen.runs.reader import read_run

SPLITS = ("validation", "target")


def rounds_of(records):
    return [entry for entry in records.entries if entry["event"] == "round"]


@pytest.mark.parametrize("method", ["fedavg", "csac", "cwt"])
def test_scores_are_those_of_the_weights_that_each_client_trained(method, make_experiment, go):
    settings = {"acquisition_epochs": 1} if method == "csac" else {}
    experiment = make_experiment(method, settings=settings)
    _, records = go(make_experiment(method, settings=settings), rounds=1, evaluate_clients=True)
    found = rounds_of(records)[0]["client_scores"]
    assert set(found) == {"a", "b", "c"}
    workspace, sets = Workspace(experiment), experiment.evaluation_sets(*SPLITS)
    start = workspace.flat.read()
    for client in rounds_of(records)[0]["clients"]:
        position = experiment.federation.position(client)
        trained = workspace.train_client(position, {}, RoundStart(1, start)).weights
        workspace.flat.load(trained)
        own = {key: one.metrics() for key, one in zip(sets, workspace.evaluate_all(sets), strict=True)}
        assert own == {(each["domain"], each["split"]): each["metrics"] for each in found[client]}
        if method == "cwt":
            start = trained
    assert {domain for domain, _ in sets} == {"a", "b", "c", "held"}


def test_training_stays_the_same_and_only_evaluated_rounds_have_scores(make_experiment, go):
    plain, before = go(make_experiment("fedavg"), "plain", rounds=3, evaluate_every=2)
    with_scores, records = go(
        make_experiment("fedavg"), "scores", rounds=3, evaluate_every=2, evaluate_clients=True
    )
    assert torch.equal(plain.weights, with_scores.weights)
    assert ["client_scores" in record for record in rounds_of(records)] == [False, True, True]
    assert not any("client_scores" in record for record in rounds_of(before))


def test_a_protection_and_sites_elsewhere_exclude_it():
    values = {"data": "rotated-digits", "hold_out": "75", "evaluate_clients": True}
    check_names(RunConfig.from_mapping(values))
    for more in ({"protect": "secure-sum"}, {"engine": "flower"}):
        with pytest.raises(UsageError, match="--evaluate-clients"):
            check_names(RunConfig.from_mapping({**values, **more}))


def test_the_report_has_a_panel_per_client(tmp_path):
    values = {"data": "rotated-digits", "hold_out": ["30", "45", "60", "75"], "rounds": 2}
    config = RunConfig.from_mapping(
        {**values, "batches_per_epoch": 1, "workers": 1, "evaluate_clients": True}
    )
    result = run(config, out=tmp_path / "run", report=False)
    assert set(draw_figures(read_run(result.folder))["client-scores"]) == {"0", "15"}
