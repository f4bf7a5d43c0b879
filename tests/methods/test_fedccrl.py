"""FedCCRL against its released loss written out, its pool of statistics, and when it is FedAvg."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, start_of, visit
from torch.nn import functional

from unseen.data.augmentation.policies import augmix
from unseen.data.augmentation.sample_mixing import draw_beta
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods._shared import bank_key, read_bank
from unseen.methods.fedccrl import (
    STATISTICS,
    draw_from_pool,
    image_statistics,
    jensen_shannon,
    supervised_contrast,
)
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig


def literal_divergence(logits):
    """Mean of the three KL divergences to the mean prediction, as the released code has it."""
    predictions = [functional.softmax(each, dim=1) for each in logits]
    middle = torch.clamp(sum(predictions) / len(predictions), 1e-7, 1).log()
    return sum(functional.kl_div(middle, each, reduction="batchmean") for each in predictions) / len(logits)


def literal_contrast(view, original, targets, tau=0.1, *, own_positive):
    """Supervised contrast, pair by pair."""
    rows = [row / row.norm() for row in torch.cat([view, original])]
    labels = targets.tolist() * 2
    terms = []
    for i, z in enumerate(rows):
        others = sum(torch.exp(z @ a / tau) for j, a in enumerate(rows) if j != i)
        positives = [
            z @ p / tau for j, p in enumerate(rows) if labels[j] == labels[i] and (own_positive or j != i)
        ]
        terms.append(torch.log(others) - sum(positives) / len(positives))
    return sum(terms) / len(terms)


def literal_view(inputs, pool, generator, normalize):
    """One view: MixStyle of normalized images with statistics from the pool, then AugMix of pixels."""
    if pool is not None:
        chosen = draw_from_pool(len(pool), len(inputs), generator)
        share = draw_beta(len(inputs), 0.1, generator)
        styled = []
        for image, statistics, own in zip(inputs, pool[chosen], share, strict=True):
            channels = []
            for values, (mean, std) in zip(image, statistics.T, strict=True):
                old_mean, old_std = values.mean(), (values.var() + 1e-6).sqrt()
                new_mean, new_std = own * old_mean + (1 - own) * mean, own * old_std + (1 - own) * std
                channels.append((values - old_mean) / old_std * new_std + new_mean)
            styled.append(torch.stack(channels))
        inputs = torch.stack(styled)
    return normalize.finish(augmix(normalize.undo(inputs).clamp(0, 1), generator))


def literal_rounds(experiment, rounds, *, own_positive):
    state, bank = start_of(experiment), {}
    normalize = experiment.prepare.normalize
    for number in range(1, rounds + 1):
        visits, sent = [], {}
        for client in "abc":
            generator = torch_generator(experiment.seed, "views", client, number)
            others = [bank[name] for name in sorted(bank) if name != client]
            pool = torch.cat(others) if others else None

            def loss(module, batch, generator=generator, pool=pool):
                inputs = [batch.inputs]
                inputs += [literal_view(batch.inputs, pool, generator, normalize) for _ in range(2)]
                features = [module.features(each) for each in inputs]
                logits = [module.head(each) for each in features]
                value = sum(functional.cross_entropy(each, batch.targets) for each in logits)
                contrast = sum(
                    literal_contrast(view, features[0], batch.targets, own_positive=own_positive)
                    for view in features[1:]
                )
                return value + 0.1 * literal_divergence(logits) + 0.1 * contrast / 2

            visits.append(visit(experiment, client, round=number, start=state, loss=loss))
        workspace = Workspace(experiment)
        for position, client in enumerate("abc"):
            start = RoundStart(number, workspace.flat.read())
            sent[client] = workspace.train_client(position, {}, start).extras[STATISTICS]
        bank = sent
        state = mean_state([each.state for each in visits], [each.samples for each in visits])
    return state


@pytest.mark.parametrize("own_positive", [False, True])
def test_equals_the_literal_algorithm(own_positive, make_experiment, go):
    plan = LocalTrainingConfig(epochs=1, batch_size=8, lr=0.02, momentum=0.5)
    settings = {"own_positive": own_positive, "upload": 0.3}
    options = {"plan": plan, "settings": settings}
    ours, _ = go(make_experiment("fedccrl", **options), rounds=2)
    literal = make_experiment("fedccrl", **options)
    assert_state(ours.weights, literal_rounds(literal, 2, own_positive=own_positive), layout_of(literal))
    plain, _ = go(make_experiment("fedavg", plan=plan), "plain", rounds=2)
    assert (ours.weights - plain.weights).abs().max() > 1e-3


def test_terms_equal_their_released_forms():
    generator = torch.Generator().manual_seed(0)
    logits = [5 * torch.randn(6, 3, generator=generator) for _ in range(3)]
    torch.testing.assert_close(jensen_shannon(logits), literal_divergence(logits))
    assert jensen_shannon(logits[:1] * 3) == pytest.approx(0, abs=1e-6)
    certain = [torch.tensor([[200.0, 0.0]]), torch.tensor([[0.0, 200.0]])]
    assert jensen_shannon(certain) == pytest.approx(math.log(2))
    view, original = torch.randn(2, 6, 4, generator=generator)
    targets = torch.tensor([0, 1, 2, 0, 1, 0])
    for own in (False, True):
        found = supervised_contrast(view, original, targets, temperature=0.1, own_positive=own)
        torch.testing.assert_close(found, literal_contrast(view, original, targets, own_positive=own))


@pytest.mark.parametrize("settings", [{"views": 0}, {"views": 0, "upload": 0}])
def test_without_views_it_is_fedavg_to_the_last_bit(settings, make_experiment, go):
    experiment = make_experiment("fedccrl", settings=settings)
    assert STATISTICS not in experiment.method.sends
    ours, _ = go(experiment, "ours", rounds=2)
    plain, _ = go(make_experiment("fedavg"), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)


def test_every_part_acts_and_changes_the_outcome(make_experiment, go, rounds_of):
    def trained(name, **settings):
        plan = LocalTrainingConfig(epochs=3, batch_size=4, lr=0.1, momentum=0.5)
        return go(
            make_experiment("fedccrl", plan=plan, settings={"prediction": 5, **settings}), name, rounds=2
        )

    whole, records = trained("whole")
    first, second = (record["diagnostics"] for record in rounds_of(records))
    assert first["images_in_the_pool"] == second["images_in_the_pool"] == 3
    for name in ("prediction_divergence", "representation_contrast", "change_of_views"):
        assert min(second[name].values()) > 1e-3
    for changed, value in (("prediction", 0), ("representation", 0), ("upload", 0), ("views", 1)):
        other, _ = trained(changed, **{changed: value})
        assert (whole.weights - other.weights).abs().max() > 1e-3, changed


def test_statistics_are_those_of_single_images_and_declared_so(make_experiment):
    assert METHODS["fedccrl"].of_single_samples == (STATISTICS,)
    experiment = make_experiment("fedccrl")
    held = []
    original = experiment.method.client

    def look(work):
        held.append((image_statistics(work, fraction=1.0), image_statistics(work, fraction=0.01)))
        every = work.prepare(work.train.gather(torch.arange(len(work.train)))).inputs
        held.append(every)
        return original(work)

    experiment.method.client = look
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    (whole, single), every = held
    torch.testing.assert_close(whole[:, 0], every.mean((2, 3)))
    torch.testing.assert_close(whole[:, 1], (every.var((2, 3)) + 1e-6).sqrt())
    assert single.shape == (1, 2, 3)
    assert update.extras[STATISTICS].shape == (len(every) // 10, 2, 3)


def test_statistics_leave_every_round_or_once(make_experiment, go):
    sent = {}
    for every_round in (True, False):
        for rounds in (1, 2):
            experiment = make_experiment("fedccrl", settings={"every_round": every_round})
            checkpoint, _ = go(experiment, f"{every_round} {rounds}", rounds=rounds)
            sent[every_round, rounds] = read_bank(checkpoint.server, STATISTICS)[bank_key(STATISTICS, "a")]
    assert not torch.equal(sent[True, 1], sent[True, 2])
    assert torch.equal(sent[False, 1], sent[False, 2])


def test_statistics_that_no_images_have_are_refused(make_experiment):
    experiment = make_experiment("fedccrl")
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))

    def reason(values):
        changed = replace(update, extras={STATISTICS: values})
        return experiment.method.explain_unusable_extras(changed, plan=experiment.plan, outputs=3, own=[0])

    good = update.extras[STATISTICS]
    assert reason(good) == ""
    for bad in (good.repeat(99, 1, 1), good[:0], good[:, :1], good.double(), -good.abs()):
        assert reason(bad) == "sent channel statistics that no images have"


def test_draws_from_a_small_pool_repeat():
    generator = torch.Generator().manual_seed(0)
    assert sorted(draw_from_pool(5, 5, generator).tolist()) == [0, 1, 2, 3, 4]
    assert set(draw_from_pool(2, 50, generator).tolist()) == {0, 1}


@pytest.mark.parametrize(
    "settings", [{"upload": 2}, {"views": -1}, {"alpha": 0}, {"temperature": 0}, {"prediction": -1}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method("fedccrl", settings)


def test_regression_is_refused(make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match="regression"):
        go(make_experiment("fedccrl", data=tiny_regression), rounds=1)
