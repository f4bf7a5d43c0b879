"""FedDG: equal to the algorithm written out with spectra by NumPy; each part acts, none is FedAvg."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from unseen.data import Samples
from unseen.engine import SerialEngine
from unseen.engine.experiment import RoundStart
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import METHODS, make_method
from unseen.methods._shared import add_to_bank, read_bank
from unseen.methods.feddg.spectra import SPECTRA, Partners, low_amplitudes
from unseen.models import FlatState
from unseen.runs.checkpoint import StateStore
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.0)
WINDOW, INNER_LR, SENT = 0.25, 0.05, 7
SETTINGS = {"window": WINDOW, "inner_lr": INNER_LR, "spectra": SENT}


def rounds_of(records):
    return [record for record in records.entries if record["event"] == "round"]


def literal_amplitudes(image):
    """The whole amplitude spectrum of an image (channels x height x width), low frequencies in the middle."""
    return np.abs(np.fft.fftshift(np.fft.fft2(image, norm="ortho"), axes=(1, 2)))


def literal_mixed(image, partner, share):
    """The image with `share` of the partner's amplitudes in a centred square, back on the scale 0..1."""
    spectrum = np.fft.fftshift(np.fft.fft2(image, norm="ortho"), axes=(1, 2))
    amplitude, phase = np.abs(spectrum), np.angle(spectrum)
    side = image.shape[1]
    half, middle = int(WINDOW * side), side // 2
    area = (slice(None), slice(middle - half, middle + half + 1), slice(middle - half, middle + half + 1))
    amplitude[area] = (1 - share) * amplitude[area] + share * partner[area]
    turned_back = np.fft.ifftshift(amplitude * np.exp(1j * phase), axes=(1, 2))
    return np.clip(np.fft.ifft2(turned_back, norm="ortho").real, 0, 1)


def pixels(samples, positions):
    return samples.gather(positions).inputs.numpy().astype(np.float64) / 255


def literal_step(network, batch_inputs, mixed, targets, lr, *, first_order):
    """w <- w - lr * (grad L(x; w) + grad L(x'; w - inner_lr grad L(x; w)))."""
    parameters = dict(network.named_parameters())
    train = functional.cross_entropy(network(batch_inputs), targets)
    if mixed is None:
        total = torch.autograd.grad(train, parameters.values())
    else:
        inner = torch.autograd.grad(
            train, parameters.values(), create_graph=not first_order, retain_graph=True
        )
        trial = {
            name: value - INNER_LR * gradient
            for (name, value), gradient in zip(parameters.items(), inner, strict=True)
        }
        test = functional.cross_entropy(torch.func.functional_call(network, trial, mixed), targets)
        total = torch.autograd.grad(train + test, parameters.values())
    with torch.no_grad():
        for value, gradient in zip(parameters.values(), total, strict=True):
            value.sub_(lr * gradient)


def literal_feddg(experiment, rounds, *, first_order):
    """Round 1: plain training, spectra of some images go into the bank. Then episodes with mixed images."""
    network, bank = copy.deepcopy(experiment.network), {}
    mean, std = experiment.network.pixel_mean[0], experiment.network.pixel_std[0]
    for number in range(1, rounds + 1):
        locals_, sizes, new = [], [], {}
        for client in experiment.federation:
            local = copy.deepcopy(network).train()
            samples = Samples(experiment.data, client.train)
            if client.name not in bank:
                draw = torch_generator(experiment.seed, "spectra", client.name, number)
                chosen = torch.randperm(len(samples), generator=draw)[:SENT].sort().values
                amplitudes = [literal_amplitudes(image) for image in pixels(samples, chosen)]
                new[client.name] = [values.astype(np.float16).astype(np.float64) for values in amplitudes]
            others = [bank[name] for name in sorted(bank) if name != client.name]
            order = torch_generator(experiment.seed, "training: order", client.name, number)
            mixing = torch_generator(experiment.seed, "mixing", client.name, number)
            for positions in batch_positions(len(samples), experiment.plan.batch_size, generator=order):
                images, mixed = pixels(samples, positions), None
                if others:
                    who = torch.randint(len(others), (len(images),), generator=mixing).tolist()
                    which = torch.rand(len(images), generator=mixing, dtype=torch.float64).tolist()
                    shares = torch.rand(len(images), generator=mixing).tolist()
                    partners = [others[w][int(p * len(others[w]))] for w, p in zip(who, which, strict=True)]
                    made = [literal_mixed(*each) for each in zip(images, partners, shares, strict=True)]
                    mixed = torch.tensor((np.stack(made) - mean) / std, dtype=torch.float32)
                inputs = torch.tensor((images - mean) / std, dtype=torch.float32)
                targets = samples.gather(positions).targets
                literal_step(local, inputs, mixed, targets, experiment.plan.lr, first_order=first_order)
            locals_.append(local.state_dict())
            sizes.append(len(samples))
        network.load_state_dict(
            {
                key: sum(n / sum(sizes) * state[key] for n, state in zip(sizes, locals_, strict=True))
                for key in locals_[0]
            }
        )
        bank |= new
    return FlatState(network).read()


@pytest.mark.parametrize("first_order", [True, False])
@pytest.mark.parametrize(
    "partition", [PartitionConfig(), PartitionConfig("dirichlet", clients_per_domain=2, alpha=1)]
)
def test_equals_the_algorithm_written_out(first_order, partition, make_experiment, go):
    options = {"plan": PLAN, "partition": partition, "settings": {**SETTINGS, "first_order": first_order}}
    expected = literal_feddg(make_experiment("feddg", **options), 3, first_order=first_order)
    ours, _ = go(make_experiment("feddg", **options), rounds=3)
    torch.testing.assert_close(ours.weights, expected, rtol=1e-3, atol=2e-5)


VARIANTS = {
    "feddg": {},
    "second order": {"first_order": False},
    "no mixing": {"mixing": False},
    "no episodes": {"episodic": False},
    "brightness only": {"window": 0},
}


def test_every_part_changes_the_outcome(make_experiment, go):
    found = {"fedavg": go(make_experiment("fedavg", plan=PLAN), "fedavg")[0].weights}
    for name, change in VARIANTS.items():
        experiment = make_experiment("feddg", plan=PLAN, settings={**SETTINGS, "inner_lr": 0.5, **change})
        found[name] = go(experiment, name)[0].weights
    names = list(found)
    for position, one in enumerate(names):
        for other in names[:position]:
            assert (found[one] - found[other]).abs().max() > 1e-4, (one, other)


def test_the_records_show_that_images_change_and_what_both_losses_are(make_experiment, go):
    _, records = go(make_experiment("feddg", plan=PLAN, settings=SETTINGS), rounds=3)
    first, *later = [record["diagnostics"] for record in rounds_of(records)]
    assert "loss on mixed images" not in first and "change by mixing" not in first
    assert first["spectra in the bank"] == 3 * SENT
    for diagnostics in later:
        assert all(0.005 < value < 0.5 for value in diagnostics["change by mixing"].values())
        assert all(value > 0.05 for value in diagnostics["loss on mixed images"].values())
        assert diagnostics["loss on mixed images"] != diagnostics["loss on own images"]


@pytest.mark.parametrize("model", ["mnist-cnn", "mini-vit"])
def test_without_both_parts_it_is_fedavg(model, make_experiment, go):
    off = {"mixing": False, "episodic": False}
    ours, _ = go(make_experiment("feddg", settings=off, model=model), "ours")
    plain, _ = go(make_experiment("fedavg", model=model), "plain")
    assert torch.equal(ours.weights, plain.weights)


def test_the_first_round_and_a_client_alone_are_fedavg(make_experiment, make_tiny_data, go):
    ours, _ = go(make_experiment("feddg"), "ours", rounds=1)
    plain, _ = go(make_experiment("fedavg"), "plain", rounds=1)
    assert torch.equal(ours.weights, plain.weights)
    alone = make_tiny_data(("a", "held"))
    ours, _ = go(make_experiment("feddg", data=alone), "ours alone", rounds=3)
    plain, _ = go(make_experiment("fedavg", data=alone), "plain alone", rounds=3)
    assert torch.equal(ours.weights, plain.weights)


def test_spectra_are_sent_once_small_and_kept_in_the_checkpoint(make_experiment, go):
    checkpoint, records = go(make_experiment("feddg", settings=SETTINGS), rounds=3)
    plain, _ = go(make_experiment("fedavg"), "plain")
    first, second, third = (record["bytes_up"] for record in rounds_of(records))
    weights = 3 * plain.weights.nbytes
    assert first == weights + 3 * SENT * 3 * 5 * 3 * 2, "three channels, five rows, three columns, two bytes"
    assert second == third == weights
    bank = read_bank(checkpoint.server, SPECTRA)
    assert {key.removeprefix(f"{SPECTRA} of ") for key in bank} == {"a", "b", "c"}
    assert all(value.dtype == torch.float16 and value.shape == (SENT, 3, 5, 3) for value in bank.values())


def test_the_bank_holds_amplitudes_of_training_images_only(make_experiment, go):
    experiment = make_experiment("feddg", settings={**SETTINGS, "spectra": None})
    checkpoint, _ = go(experiment, rounds=1)
    for client in experiment.federation:
        images = torch.from_numpy(experiment.data.inputs[client.train]).permute(0, 3, 1, 2) / 255
        expected = low_amplitudes(images, window=WINDOW)
        torch.testing.assert_close(
            checkpoint.server[f"{SPECTRA} of {client.name}"].float(), expected, rtol=1e-3, atol=1e-4
        )


def test_a_client_sends_again_until_the_server_has_its_spectra(make_experiment, tmp_path):
    experiment = make_experiment("feddg", settings=SETTINGS)
    engine = SerialEngine(experiment, StateStore(tmp_path))
    start = engine.workspace.flat.read()
    _, (first, *_) = engine.train([0], RoundStart(1, start))
    _, (lost, *_) = engine.train([0], RoundStart(2, start))
    bank = {}
    add_to_bank(bank, SPECTRA, [first.client], [first.update.extras])
    _, (then, *_) = engine.train([0], RoundStart(3, start, bank))
    assert SPECTRA in first.update.extras and SPECTRA in lost.update.extras
    assert then.update.extras == {} and "loss on mixed images" not in then.update.diagnostics


def test_partners_are_the_others_each_client_alike_and_all_their_spectra():
    sizes, bank = {"a": 2, "b": 30, "c": 3}, {}
    for number, (name, size) in enumerate(sizes.items()):
        values = 100 * number + torch.arange(size, dtype=torch.float16).view(-1, 1, 1, 1)
        add_to_bank(bank, SPECTRA, [name], [{SPECTRA: values}])
    drawn = Partners(bank, "a").draw(4000, generator=torch_generator(0, "test")).flatten().long()
    assert set(drawn.tolist()) == {*range(100, 130), *range(200, 203)}
    assert 0.45 < (drawn < 200).float().mean() < 0.55
    assert Partners(bank, "stranger").clients == 3 and Partners({}, "a").clients == 0


def test_what_leaves_a_client_is_said(make_experiment):
    assert SPECTRA in METHODS["feddg"].sends and SPECTRA in make_method("feddg").sends
    assert SPECTRA not in make_method("feddg", {"mixing": False}).sends


def test_images_with_numbers_to_predict(make_experiment, make_tiny_data, go):
    data = make_tiny_data()
    numbers = replace(
        data, task="regression", targets=data.targets.astype("float32"), classes=(), fingerprint=""
    )
    experiment = make_experiment("feddg", data=numbers, plan=replace(PLAN, epochs=5), settings=SETTINGS)
    _, records = go(experiment, rounds=3)
    losses = [record["diagnostics"]["loss on own images"] for record in rounds_of(records)]
    assert sum(losses[-1].values()) < 0.5 * sum(losses[0].values())


def test_tables_are_refused_unless_nothing_is_mixed(make_experiment, make_tiny_data, go):
    data = make_tiny_data()
    rows = data.inputs.reshape(len(data.inputs), -1).astype("float32") / 255
    table = replace(data, inputs=rows, fingerprint="")
    with pytest.raises(UsageError, match="mixes the spectra of images, but this data is a table"):
        go(make_experiment("feddg", data=table, model="mlp"))
    checkpoint, _ = go(
        make_experiment("feddg", data=table, model="mlp", settings={"mixing": False}), "episodes"
    )
    assert torch.isfinite(checkpoint.weights).all()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"window": 0.6}, "must be in"),
        ({"window": -0.1}, "must be in"),
        ({"spectra": 0}, "at least 1"),
        ({"inner_lr": 0}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, text):
    with pytest.raises(UsageError, match=text):
        make_method("feddg", wrong)
