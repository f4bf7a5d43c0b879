"""PromptFL: the prompt's pass through the text tower against a literal one, and what is sent."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.training import LocalTrainingConfig

STEP = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, batches_per_epoch=1)


def literal_vectors(texts, context):
    """Vectors of [start] V_1 ... V_m [name] [.] [end], one class at a time, on whole texts of 77 tokens."""
    from open_clip.tokenizer import tokenize

    tower, vectors = texts.tower, []
    for name in texts.names:
        whole = tokenize([f"{name}."])[0]
        length = int(whole.argmax())
        parts = tower.token_embedding(whole)
        rest = parts[1 : length + 1]
        padding = tower.token_embedding(torch.zeros(77 - 1 - len(context) - len(rest), dtype=torch.long))
        values = torch.cat([parts[:1], context, rest, padding]) + tower.positional_embedding
        values = tower.transformer(values[None], attn_mask=tower.attn_mask)
        end = tower.ln_final(values)[0, len(context) + length]
        vectors.append(F.normalize(end @ tower.text_projection, dim=0))
    return torch.stack(vectors)


def random_images():
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tokens", [1, 16])
def test_logits_are_cosines_with_the_prompts(tokens, make_experiment):
    experiment = make_experiment("promptfl", settings={"tokens": tokens})
    network = Workspace(experiment).deployed
    texts = experiment.network.texts
    with torch.no_grad():
        expected = texts.scale * F.normalize(network.body(random_images()), dim=1)
        expected = expected @ literal_vectors(texts, network.head.context).T
        for mode in (network.train(), network.eval()):
            torch.testing.assert_close(mode(random_images()), expected, rtol=1e-4, atol=1e-4)


def test_one_step_of_a_client_equals_a_literal_one(make_experiment):
    experiment = make_experiment("promptfl", settings={"tokens": 4}, plan=STEP)
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    batches = []
    plain = experiment.method.client
    experiment.method.client = lambda work: batches.extend(work.batches()) or plain(work)
    update = workspace.train_client(0, {}, RoundStart(1, start))
    (batch,) = batches
    network, texts = experiment.network.eval(), experiment.network.texts
    context = start.reshape(4, 32).clone().requires_grad_()
    with torch.no_grad():
        images = F.normalize(network.body(batch.inputs), dim=1)
    loss = F.cross_entropy(texts.scale * images @ literal_vectors(texts, context).T, batch.targets)
    (gradient,) = torch.autograd.grad(loss, context)
    assert gradient.abs().max() > 1e-3
    expected = context.detach() - STEP.lr * gradient
    torch.testing.assert_close(update.weights.reshape(4, 32), expected, rtol=1e-4, atol=1e-5)


def test_evaluation_follows_the_tokens_and_does_not_compute_prompts_twice(make_experiment, monkeypatch):
    workspace = Workspace(make_experiment("promptfl"))
    network, start = workspace.deployed.eval(), workspace.flat.read()
    calls = []
    encode = type(network.head.texts).encode
    monkeypatch.setattr(type(network.head.texts), "encode", lambda *given: calls.append(1) or encode(*given))
    with torch.inference_mode():
        before = network(random_images())
        assert torch.equal(network(random_images()), before) and len(calls) == 1
        workspace.flat.load(start + torch.linspace(-1, 1, len(start)))
        after = network(random_images())
        assert not torch.allclose(after, before, atol=1e-3) and len(calls) == 2
    copied = copy.deepcopy(network)
    with torch.no_grad():
        torch.testing.assert_close(copied(random_images()), after)
        workspace.flat.load(start)
        torch.testing.assert_close(network(random_images()), before)


def test_only_the_tokens_are_sent_and_the_saved_head_is_theirs(make_experiment, go):
    experiment = make_experiment("promptfl")
    workspace = Workspace(experiment)
    assert [entry.name for entry in workspace.flat.layout.entries] == ["head.context"]
    assert workspace.flat.layout.size == 16 * 32
    checkpoint, _ = go(experiment)
    tensors = workspace.whole_tensors(checkpoint.weights)
    assert not any("tower" in name or "names" in name for name in tensors)
    workspace.flat.load(checkpoint.weights)
    network = workspace.deployed.eval()
    with torch.no_grad():
        features = network.features(random_images())
        torch.testing.assert_close(features @ tensors["head.weight"].T, network.head(features))
    torch.testing.assert_close(tensors["head.context"].flatten(), checkpoint.weights)


def test_the_start_depends_on_the_seed_and_training_lowers_the_loss(make_experiment, go, rounds_of):
    experiment = make_experiment(
        "promptfl", plan=LocalTrainingConfig(epochs=2, batch_size=4, lr=0.2, momentum=0.0)
    )
    one, other = (experiment.method.build(experiment.network, seed=seed).head.context for seed in (0, 1))
    assert not torch.equal(one, other) and 0.01 < float(one.std()) < 0.03
    _, records = go(experiment, rounds=3)
    first, *_, last = [record["loss"] for record in rounds_of(records)]
    assert last < first


def test_a_prompt_that_is_too_long_is_refused(make_experiment):
    with pytest.raises(UsageError, match="more than 77 tokens"):
        Workspace(make_experiment("promptfl", settings={"tokens": 74}))
    with pytest.raises(UsageError, match="'tokens' of promptfl must be at least 1"):
        make_method("promptfl", {"tokens": 0})
