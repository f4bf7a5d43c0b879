"""Every option of CSAC does what its name says, and each row of the paper's tables 4 and 5 is one."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_csac import STEP, calibration_work, client_work

from unseen.data import DataSet
from unseen.errors import UsageError
from unseen.methods import METHODS, describe_settings, make_method
from unseen.methods.csac.alignment import Projections, pair_weights
from unseen.methods.csac.csac import LOCAL_MODEL, PROJECTIONS
from unseen.training import LocalTrainingConfig

ROWS_OF_TABLE_5 = {
    "without alignment": {"alignment": "none"},
    "same-layer alignment": {"alignment": "same-layer"},
    "without attention (position)": {"attention": "channel"},
    "without attention (channel)": {"attention": "position"},
    "without attention": {"attention": "none"},
    "without cross-entropy": {"cross_entropy": "false"},
    "mean square error": {"distance": "mse"},
}
OTHER_OPTIONS = {
    "strength": {"strength": 0.3},
    "logits term": {"logits_term": "true"},
    "as released": {"variant": "as-released"},
    "query and key": {"query_key": "true"},
    "attention gradient": {"attention_gradient": "true"},
    "channels": {"channels": 8},
    "rebuilt projections": {"rebuild_projections": "true"},
}
OPTIONS = ROWS_OF_TABLE_5 | OTHER_OPTIONS


@pytest.fixture
def calibrate(make_experiment):
    """Run one step of calibration with some settings; return what the client sends and what it keeps."""

    def run(settings=None, *, plan=STEP, **options):
        experiment = make_experiment("csac", settings=settings, plan=plan, **options)
        work = calibration_work(experiment)
        return experiment.method.client(work), work

    return run


@pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_of_calibration_changes_the_outcome(calibrate, settings):
    full, _ = calibrate()
    other, _ = calibrate(settings)
    assert torch.isfinite(other.weights).all()
    assert float((full.weights - other.weights).abs().max()) > 1e-7


def test_no_option_that_leaves_the_method_as_it_is_changes_the_outcome(calibrate):
    defaults = {"alignment": "cross-layer", "attention": "both", "distance": "mmd", "variant": "paper"}
    assert torch.equal(calibrate()[0].weights, calibrate(defaults)[0].weights)


@pytest.mark.parametrize("settings", [{"alignment": "none"}, {"strength": 0}])
def test_without_alignment_calibration_is_plain_training(calibrate, make_experiment, settings):
    update, work = calibrate(settings)
    plain = make_experiment("fedavg", plan=STEP)
    trained = plain.method.client(client_work(plain, round=2, start=work.start))
    assert torch.equal(update.weights, trained.weights)
    assert not update.diagnostics and PROJECTIONS not in work.state


def test_without_divergence_and_alignment_it_is_fedavg(make_experiment, make_tiny_data, go):
    """One batch holds all samples: acquisition draws its own order."""
    data = make_tiny_data(missing=("b", 1))
    plan = LocalTrainingConfig(epochs=2, batch_size=99, lr=0.05, momentum=0.5)
    settings = {"strategy": "average", "strength": 0, "label_smoothing": 0, "acquisition_epochs": 2}
    ours, _ = go(make_experiment("csac", data=data, plan=plan, settings=settings), rounds=2)
    settings = {"weighting": "uniform"}
    plain, _ = go(make_experiment("fedavg", data=data, plan=plan, settings=settings), "plain", rounds=2)
    torch.testing.assert_close(ours.weights, plain.weights, rtol=1e-5, atol=1e-6)


def test_without_cross_entropy_only_layers_below_the_taps_move(calibrate):
    update, work = calibrate({"cross_entropy": "false"})
    for entry in work.flat.layout.entries:
        moved = not torch.equal(update.weights[entry.slice], work.start[entry.slice])
        assert moved == entry.name.startswith(("stages.conv1", "stages.conv2")), entry.name


def test_as_released_only_the_outputs_are_aligned(calibrate):
    released, work = calibrate({"variant": "as-released"})
    outputs_only, _ = calibrate({"alignment": "none", "logits_term": "true"})
    assert torch.equal(released.weights, outputs_only.weights)
    assert abs(released.diagnostics["alignment_loss"]) > 1e-3 and "attention" not in released.diagnostics
    assert PROJECTIONS not in work.state
    alone, work = calibrate({"variant": "as-released", "cross_entropy": "false"})
    head = next(entry.slice for entry in work.flat.layout.entries if entry.name == "head.weight")
    assert not torch.equal(alone.weights[head], work.start[head])


def test_the_logits_term_comes_on_top(calibrate):
    both, maps, outputs = (
        calibrate(settings)[0].diagnostics["alignment_loss"]
        for settings in ({"logits_term": "true"}, {}, {"variant": "as-released"})
    )
    assert both == pytest.approx(maps + outputs, rel=1e-4)


def test_attention_weights_of_each_kind(calibrate):
    kinds = {
        kind: torch.tensor(calibrate({"attention": kind})[0].diagnostics["attention"])
        for kind in ("both", "position", "channel", "none")
    }
    assert torch.equal(kinds["none"], torch.full((2, 2), 0.5))
    torch.testing.assert_close(kinds["both"], (kinds["position"] + kinds["channel"]) / 2, rtol=0, atol=2e-5)
    assert not torch.equal(kinds["position"], kinds["channel"])
    same_layer = calibrate({"alignment": "same-layer"})[0].diagnostics["attention"]
    assert same_layer == [[1.0, 0.0], [0.0, 1.0]]


def test_queries_and_keys_serve_the_position_map_only():
    settings = {kind: make_method("csac", {"attention": kind}).settings for kind in ("position", "channel")}
    shapes = [torch.Size((3, 2, 2))] * 2
    with_them = Projections(shapes, channels=4, query_key=True)
    without = copy.deepcopy(with_them)
    without.queries, without.keys = without.queries[:0], without.keys[:0]
    fused, local = torch.randn(2, 2, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    for kind, chosen in settings.items():
        first, second = (pair_weights(chosen, parts, fused, local) for parts in (with_them, without))
        assert torch.equal(first, second) == (kind == "channel")


def test_queries_and_keys_learn_only_if_gradients_flow_through_the_attention(calibrate):
    moved = {}
    for flows in ("false", "true"):
        settings = {"query_key": "true", "attention_gradient": flows}
        work = calibrate(settings)[1]
        method = make_method("csac", settings)
        shapes = [torch.Size((32, 4, 4)), torch.Size((64, 2, 2))]
        start = method._projections(work, shapes).state_dict()
        layout = type(work.flat)(method._projections(work, shapes)).layout
        after = layout.tensors(work.state[PROJECTIONS])
        moved[flows] = {name.split(".")[0] for name in after if not torch.equal(after[name], start[name])}
    assert moved == {"false": {"fused", "local"}, "true": {"fused", "local", "queries", "keys"}}


def test_projections_are_kept_unless_they_are_to_be_rebuilt(calibrate, make_experiment):
    kept = calibrate()[1]
    assert (
        PROJECTIONS in kept.state and PROJECTIONS not in calibrate({"rebuild_projections": "true"})[1].state
    )
    experiment = make_experiment("csac", plan=STEP)
    outcomes = []
    for forgotten in (False, True):
        state = dict(kept.state)
        if forgotten:
            del state[PROJECTIONS]
        work = client_work(experiment, round=3, state=state, start=kept.start)
        outcomes.append(experiment.method.client(work).weights)
    assert not torch.equal(*outcomes)


def test_the_partner_may_be_the_latest_own_model(calibrate):
    update, work = calibrate({"partner": "latest"})
    assert torch.equal(work.state[LOCAL_MODEL], update.weights)


def test_without_label_smoothing_acquisition_is_plain_training(make_experiment):
    outcomes = {}
    for smoothing in (0, 0.1):
        settings = {"acquisition_epochs": 2, "label_smoothing": smoothing}
        experiment = make_experiment("csac", settings=settings)
        outcomes[smoothing] = experiment.method.client(client_work(experiment)).weights
    plain = client_work(experiment)
    plain.fit(
        lambda batch: plain.task_loss(plain.module(batch.inputs), batch.targets),
        plan=LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5),
        purpose="acquisition",
    )
    assert torch.equal(outcomes[0], plain.flat.read()) and not torch.equal(outcomes[0], outcomes[0.1])


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "similarity"},
        {"strategy": "average"},
        {"metric": "cosine"},
        {"metric": "l1"},
        {"layer": "module"},
    ],
    ids=str,
)
def test_rows_of_table_4_and_the_grain_of_merging_change_the_run(make_experiment, go, settings):
    quick = {"acquisition_epochs": 2}
    full, _ = go(make_experiment("csac", settings=quick), "full", rounds=1)
    other, _ = go(make_experiment("csac", settings=quick | settings), "other", rounds=1)
    assert not torch.equal(full.weights, other.weights)


def test_removing_the_alignment_changes_a_whole_run(make_experiment, go):
    runs = [
        go(make_experiment("csac", settings={"acquisition_epochs": 2} | settings), name, rounds=2)[0].weights
        for name, settings in (("full", {}), ("none", {"alignment": "none"}))
    ]
    assert float((runs[0] - runs[1]).abs().max()) > 1e-4


def test_networks_without_taps_align_their_features(calibrate):
    update, work = calibrate({"cross_entropy": "false"}, model="mlp")
    assert update.diagnostics["attention"] == [[1.0]] and abs(update.diagnostics["alignment_loss"]) > 1e-3
    for entry in work.flat.layout.entries:
        moved = not torch.equal(update.weights[entry.slice], work.start[entry.slice])
        assert moved == entry.name.startswith("stages"), entry.name


@pytest.mark.parametrize("settings", [{}, {"logits_term": "true"}, {"distance": "mse"}])
def test_tables_with_a_number_to_predict(calibrate, settings):
    generator = np.random.default_rng(0)
    data = DataSet(
        name="table",
        task="regression",
        inputs=generator.normal(size=(96, 5)).astype(np.float32),
        targets=generator.normal(size=96).astype(np.float32),
        domain_of=np.repeat(np.arange(4), 24),
        domains=("a", "b", "c", "held"),
        classes=(),
    )
    update, work = calibrate(settings, data=data, model="mlp")
    assert torch.isfinite(update.weights).all() and not torch.equal(update.weights, work.start)
    assert abs(update.diagnostics["alignment_loss"]) > 1e-4


def test_a_model_that_has_died_gives_no_nan(make_experiment):
    experiment = make_experiment("csac", plan=STEP)
    work = calibration_work(experiment)
    work.flat.load(torch.zeros_like(work.start))
    work.state[LOCAL_MODEL].zero_()
    assert torch.isfinite(experiment.method.client(work).weights).all()


def test_batches_of_one_are_refused_and_a_client_with_one_sample_is_not(calibrate, make_experiment):
    with pytest.raises(UsageError, match="--batch-size 2"):
        calibrate(plan=LocalTrainingConfig(epochs=1, lr=0.01, momentum=0.5, batch_size=1))
    experiment = make_experiment(
        "csac", plan=LocalTrainingConfig(epochs=1, lr=0.01, momentum=0.5, batch_size=4)
    )
    work = calibration_work(experiment)
    work.train = type(work.train)(experiment.data, experiment.federation[0].train[:1])
    update = experiment.method.client(work)
    assert torch.isfinite(update.weights).all() and update.diagnostics["alignment_loss"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strength": -1}, "strength"),
        ({"label_smoothing": 1}, "label_smoothing"),
        ({"acquisition_epochs": 0}, "acquisition_epochs"),
        ({"cross_entropy": "false", "alignment": "none"}, "nothing to learn"),
        ({"cross_entropy": "false", "strength": 0}, "nothing to learn"),
        ({"variant": "as-released", "attention": "none"}, "attention has no effect"),
        ({"variant": "as-released", "alignment": "same-layer"}, "alignment has no effect"),
        ({"alignment": "same-layer", "query_key": "true"}, "query_key has no effect"),
        ({"attention": "channel", "query_key": "true"}, "query_key has no effect"),
        ({"metric": "l3"}, "Known: cosine, l1, l2"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        make_method("csac", settings)


def test_the_page_lists_every_setting_with_its_default_and_only_valid_ablations():
    page = (Path(__file__).parents[2] / "docs" / "methods" / "csac.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", page, re.MULTILINE))
    settings = describe_settings(METHODS["csac"].settings_type())
    assert listed == {name: str(default).lower() for name, default, _ in settings}
    rows = re.findall(r"^\| ((?:table|figure) [^|]*) \| `--set (\w+)=(\S+)` \|$", page, re.MULTILINE)
    assert len(rows) == 13
    for row, name, value in rows:
        assert make_method("csac", {name: value}).settings != make_method("csac").settings, row
