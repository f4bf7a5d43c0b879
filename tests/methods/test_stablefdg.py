"""StableFDG against its algorithm written out image by image, when it is FedAvg, and what leaves a client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, samples_of, start_of, visit
from torch.nn import functional

from unseen.data.augmentation.sample_mixing import draw_beta
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods._shared import bank_key, read_bank
from unseen.methods.stablefdg.style_stages import STYLES
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig

OFF = {"sharing": 0, "mixing": 0, "highlighter": False}
PLAN = LocalTrainingConfig(epochs=2, batch_size=7, lr=0.02, momentum=0.5)


def uniform(generator):
    return float(torch.rand((), generator=generator))


def literal_style(maps):
    """Mean and deviation of every channel of one image."""
    means = torch.stack([channel.mean() for channel in maps])
    deviations = torch.stack([(channel.var() + 1e-6).sqrt() for channel in maps])
    return means.detach(), deviations.detach()


def literal_restyle(maps, style):
    """One image in another style."""
    channels = []
    for channel, mean, std, new_mean, new_std in zip(maps, *literal_style(maps), *style, strict=True):
        channels.append((channel - mean) / std * new_std + new_mean)
    return torch.stack(channels)


def literal_centers(points, count, generator):
    """k-means++ and one step of Lloyd, point by point."""
    seeds = [points[int(torch.randint(len(points), (), generator=generator))]]
    while len(seeds) < count:
        nearest = [min(float((point - seed).square().sum()) for seed in seeds) for point in points]
        drawn = torch.multinomial(torch.tensor(nearest, dtype=torch.float64), 1, generator=generator)
        seeds.append(points[int(drawn)])
    clusters = [[] for _ in seeds]
    for point in points:
        distances = [float((point - seed).square().sum()) for seed in seeds]
        clusters[distances.index(min(distances))].append(point)
    return [sum(cluster) / len(cluster) for cluster in clusters]


def literal_shift(images, foreign, generator):
    """The last half in the other client's styles, the first in centres of the batch's own."""
    drawn = round(len(images) / 2)
    noise = torch.randn(drawn, 2, len(images[0]), generator=generator)
    points = [torch.cat(literal_style(image)) for image in images]
    centers = literal_centers(points, len(images) - drawn, generator)
    styles = [center.chunk(2) for center in centers]
    styles += [
        (foreign[0, 0] + mean * foreign[1, 0], (foreign[0, 1] + deviation * foreign[1, 1]).relu())
        for mean, deviation in noise
    ]
    return [literal_restyle(image, style) for image, style in zip(images, styles, strict=True)]


def literal_balance(labels, count, generator):
    """Positions of images to add: always one of a rarest class."""
    sizes = {label: labels.count(label) for label in sorted(set(labels))}
    added = []
    while len(added) < count:
        fewest = min(sizes.values())
        rarest = [label for label in sizes if sizes[label] == fewest]
        for place in torch.randperm(len(rarest), generator=generator).tolist():
            if len(added) < count:
                of_class = [row for row, label in enumerate(labels) if label == rarest[place]]
                added.append(of_class[int(torch.randint(len(of_class), (), generator=generator))])
                sizes[rarest[place]] += 1
    return added


def literal_exploration(images, labels, generator, *, add, level):
    """Add images in styles far from the mean style, then mix the styles of all."""
    added = literal_balance(labels, len(images), generator) if add else []
    styles = [literal_style(image) for image in images]
    mean = [sum(style[part] for style in styles) / len(styles) for part in (0, 1)]
    for row in added:
        styles.append(tuple(styles[row][part] + level * (styles[row][part] - mean[part]) for part in (0, 1)))
    images, labels = images + [images[row] for row in added], labels + [labels[row] for row in added]
    shares = draw_beta(len(images), 0.1, generator)
    partners = torch.randperm(len(images), generator=generator).tolist()
    mixed = []
    for image, own, share, partner in zip(images, styles, shares, partners, strict=True):
        blend = [share * own[part] + (1 - share) * styles[partner][part] for part in (0, 1)]
        mixed.append(literal_restyle(image, blend))
    return mixed, labels


def literal_attention(layer, maps, other):
    """Weights of the positions of one image, given its partner's map."""

    def unit(convolution, image):
        columns = convolution(image[None])[0].flatten(1).T
        return [column / column.norm() for column in columns]

    queries = [(a + b) / 2 for a, b in zip(unit(layer.query, maps), unit(layer.query, other), strict=True)]
    keys = unit(layer.key, maps)
    return torch.stack([sum(query @ key for query in queries) / len(queries) for key in keys]).softmax(0)


def literal_loss(module, batch, generator, foreign, *, level):
    labels, stages = batch.targets.tolist(), module.body.stages
    maps, added = list(stages["conv1"](batch.inputs)), False
    if foreign is not None and uniform(generator) < 0.5:
        maps = literal_shift(maps, foreign, generator)
    for stage in (None, "conv2"):
        maps = list(stages[stage](torch.stack(maps))) if stage else maps
        if uniform(generator) < 0.5:
            maps, labels = literal_exploration(maps, labels, generator, add=not added, level=level)
            added = True
    features = []
    for row, (image, label) in enumerate(zip(maps, labels, strict=True)):
        same = [place for place, each in enumerate(labels) if each == label]
        partner = same[(same.index(row) + 1) % len(same)]
        weights = literal_attention(module.layer, image, maps[partner])
        pooled = (image.flatten(1) * weights).sum(1)
        features.append(torch.cat([stages["hidden"](image[None])[0], pooled]))
    return functional.cross_entropy(module.head(torch.stack(features)), torch.tensor(labels))


def literal_statistics(experiment, client, state):
    """Mean and deviation over the images of their styles behind the first stage."""
    module = Workspace(experiment).module
    module.load_state_dict(state)
    samples = samples_of(experiment, client)
    batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
    styles = [torch.stack(literal_style(image)) for image in module.eval().body.stages["conv1"](batch.inputs)]
    mean = sum(styles) / len(styles)
    variance = sum((style - mean) ** 2 for style in styles) / (len(styles) - 1)
    return torch.stack([mean, (variance + 1e-6).sqrt()])


def literal_rounds(experiment, rounds, *, level):
    state, bank = start_of(experiment), {}
    for number in range(1, rounds + 1):
        ring = torch.randperm(
            3, generator=torch_generator(experiment.seed, "stablefdg: whose styles", number)
        )
        visits, sent = [], {}
        for place, client in enumerate("abc"):
            generator = torch_generator(experiment.seed, "stablefdg: styles", client, number)
            other = "abc"[ring[(ring.tolist().index(place) + 1) % 3]]
            sent[client] = literal_statistics(experiment, client, state)

            foreign = bank.get(other)

            def loss(module, batch, generator=generator, foreign=foreign):
                return literal_loss(module, batch, generator, foreign, level=level)

            visits.append(visit(experiment, client, round=number, start=state, loss=loss))
        bank, state = sent, mean_state([each.state for each in visits], [1, 1, 1])
    return state


def built(experiment):
    """The experiment with the network that clients train."""
    module = experiment.method.build(experiment.network, seed=experiment.seed)
    method = make_method("fedavg")  # its build adds nothing more
    return replace(experiment, network=module, method=method)


@pytest.mark.parametrize("level", [3.0, 0.5])
def test_equals_the_literal_algorithm(level, make_experiment, go):
    options = {"plan": PLAN, "settings": {"exploration": level}}
    ours, records = go(make_experiment("stablefdg", **options), rounds=2)
    literal = built(make_experiment("stablefdg", **options))
    assert_state(ours.weights, literal_rounds(literal, 2, level=level), layout_of(literal))
    changes = [record["diagnostics"] for record in records.entries if record["event"] == "round"]
    assert "change_by_sharing" not in changes[0] and changes[1]["change_by_sharing"]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_its_parts_it_is_fedavg_to_the_last_bit(weighting, make_experiment, go):
    experiment = make_experiment("stablefdg", settings=OFF)
    experiment = replace(experiment, method=make_method("stablefdg", OFF, weighting=weighting))
    assert STYLES not in experiment.method.sends and not experiment.method.needs_individual_updates
    plain = replace(make_experiment("fedavg"), method=make_method("fedavg", weighting=weighting))
    ours, theirs = go(experiment, "ours", rounds=2)[0], go(plain, "plain", rounds=2)[0]
    assert torch.equal(ours.weights, theirs.weights)


def test_every_part_acts_and_changes_the_outcome(make_experiment, go, rounds_of):
    def trained(name, **settings):
        return go(make_experiment("stablefdg", plan=PLAN, settings=settings), name, rounds=2)

    whole, records = trained("whole")
    first, second = (record["diagnostics"] for record in rounds_of(records))
    assert first["clients_with_styles"] == second["clients_with_styles"] == 3
    for name in ("change_by_sharing", "change_by_mixing"):
        assert min(second[name].values()) > 1e-2
    assert min(second["rows_per_image"].values()) > 1.2
    assert min(second["attention_peak"].values()) > 1.001, "1 would be a plain mean"
    for changed in ("sharing", "shifted", "mixing", "oversampling", "exploration"):
        other, found = trained(changed, **{changed: 0})
        assert (whole.weights - other.weights).abs().max() > 1e-3, changed
        if changed in ("mixing", "oversampling"):
            assert set(rounds_of(found)[1]["diagnostics"]["rows_per_image"].values()) == {1.0}
    alone, _ = trained("alone", highlighter=False, sharing=0)
    plain, _ = go(make_experiment("fedavg", plan=PLAN), "plain", rounds=2)
    assert (alone.weights - plain.weights).abs().max() > 1e-3
    assert len(alone.weights) == len(plain.weights) < len(whole.weights)


def test_attention_and_partners_change_the_outcome(make_experiment, go):
    """A loss in which every image is its own partner trains another model."""
    plan = replace(PLAN, epochs=4, lr=0.5)
    experiment = make_experiment("stablefdg", plan=plan, settings={"sharing": 0, "mixing": 0})
    ours, _ = go(experiment, rounds=3)
    alone = built(experiment)
    layout, start = layout_of(alone), start_of(alone)
    alone = replace(alone, method=make_method("fedavg", weighting="uniform"))
    other, _ = go(alone, "own partners", rounds=3)
    paired, unpaired = layout.tensors(ours.weights), layout.tensors(other.weights)
    for name in ("layer.query.weight", "layer.key.weight"):
        assert (paired[name] - start[name]).abs().max() > 1e-3
        assert (paired[name] - unpaired[name]).abs().max() > 1e-4
    assert (ours.weights - other.weights).abs().max() > 1e-3


def test_summaries_leave_and_no_values_of_single_images(make_experiment, go):
    assert METHODS["stablefdg"].of_single_samples == ()
    experiment = make_experiment("stablefdg")
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    literal = built(experiment)
    expected = literal_statistics(literal, "a", start_of(literal))
    assert set(update.extras) == {STYLES} and update.extras[STYLES].shape == (2, 2, 32)
    torch.testing.assert_close(update.extras[STYLES], expected, rtol=1e-4, atol=1e-5)
    checkpoint, _ = go(experiment)
    bank = read_bank(checkpoint.server, STYLES)
    assert set(bank) == {bank_key(STYLES, client) for client in "abc"}


def test_styles_that_no_maps_have_are_refused(make_experiment):
    experiment = make_experiment("stablefdg")
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))

    def reason(extras):
        changed = replace(update, extras=extras)
        return experiment.method.explain_unusable_extras(changed, plan=experiment.plan, outputs=3, own=[0])

    good = update.extras[STYLES]
    assert reason({STYLES: good}) == reason({}) == ""
    for bad in (good[:1], good[:, :1], good[0], good.double(), -good):
        assert reason({STYLES: bad}) == "sent styles that no maps have"


def test_styles_of_another_width_are_not_used(make_experiment):
    experiment = make_experiment("stablefdg", settings={"sharing": 1})
    workspace = Workspace(experiment)
    received = {bank_key(STYLES, "b"): torch.ones(2, 2, 5)}
    update = workspace.train_client(0, {}, RoundStart(2, workspace.flat.read(), received))
    assert "change_by_sharing" not in update.diagnostics
    fitting = {bank_key(STYLES, "b"): torch.ones(2, 2, 32)}
    update = workspace.train_client(0, {}, RoundStart(2, workspace.flat.read(), fitting))
    assert update.diagnostics["change_by_sharing"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        *({"sharing": 2}, {"shifted": -1}, {"mixing": 1.5}, {"oversampling": -1}, {"exploration": -1}),
        *({"alpha": 0}, {"attention_size": 0}),
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method("stablefdg", settings)


def test_regression_is_refused(make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match="regression"):
        go(make_experiment("stablefdg", data=tiny_regression), rounds=1)
