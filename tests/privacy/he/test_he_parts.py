"""Encryption piece by piece: scaling, ciphertexts, inner products and sums, against plain arithmetic."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.privacy import ClientContext, make_protection
from unseen.privacy.he.aggregate import decode_gram, rescale_factors
from unseen.privacy.he.ciphertext_packing import FILLED, count_rows, find_magnitude, from_rows, to_rows
from unseen.privacy.he.ckks import SLOTS, KeyHolder
from unseen.privacy.he.encryption_cost import calibrate, describe, estimate
from unseen.privacy.he.key_exchange import (
    CONTEXT,
    GIVE,
    INTRODUCE,
    KEY_ID,
    LOCKED,
    MAKE,
    PRODUCTS,
    PUBLIC,
    ROSTER,
    STEP,
    TAKE,
    KeyRing,
)
from unseen.privacy.he.server_process import EncryptedServer, drop_negligible
from unseen.privacy.serialization import count_parts, join_parts, split_parts


@pytest.fixture(scope="module")
def holder():
    return KeyHolder.make(products=True)


@pytest.fixture(scope="module")
def public(holder):
    return holder.public(products=True)


def encrypted_clients(holder, public, vectors):
    """A server that holds the vectors encrypted, and their orders of magnitude."""
    server, magnitudes = EncryptedServer(), {}
    server.open(public)
    for number, vector in enumerate(vectors):
        magnitudes[str(number)] = find_magnitude(vector)
        rows = to_rows(vector, magnitudes[str(number)])
        server.take(str(number), [holder.encrypt(row) for row in rows])
    return server, magnitudes


@given(
    numbers=st.integers(1, 3 * FILLED),
    exponent=st.integers(-12, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_rows_keep_a_vector_of_any_size(numbers, exponent, seed):
    vector = np.random.default_rng(seed).normal(size=numbers) * 10.0**exponent
    magnitude = find_magnitude(vector)
    rows = to_rows(vector, magnitude)
    assert rows.shape == (count_rows(numbers), SLOTS)
    assert 32 * (1 - 1e-9) <= np.linalg.norm(rows[:, 1:]) < 512 * (1 + 1e-9)
    back = from_rows(list(rows), numbers=numbers, magnitude=magnitude, leading=1.0)
    assert np.linalg.norm(back - vector) <= 1e-5 * np.linalg.norm(vector)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 10.0])
def test_gram_and_sum_equal_the_plain_ones(scale, holder, public):
    """Clients whose updates differ a thousandfold in length; two rows of ciphertexts each."""
    generator = np.random.default_rng(1)
    common = generator.normal(size=FILLED + 50)
    sizes = np.array([1.0, 0.02, 1000.0]) * scale
    vectors = [size * (generator.normal(size=len(common)) - 0.3 * common) for size in sizes]
    server, magnitudes = encrypted_clients(holder, public, vectors)
    entries = np.array([holder.decrypt(part)[0] for part in server.gram(2)])
    plain = np.array(vectors) @ np.array(vectors).T
    lengths = np.sqrt(plain.diagonal())
    found = decode_gram(
        entries, clients=3, rows=2, magnitudes=torch.tensor(list(magnitudes.values()))
    ).numpy()
    assert np.abs((found - plain) / np.outer(lengths, lengths)).max() < 1e-6
    shares = {"0": 0.3, "1": -0.1, "2": 0.8}
    part = rescale_factors(shares, magnitudes)
    rows = [holder.decrypt(row) for row in server.weighted_sum(range(2), part.of_clients)]
    total = from_rows(rows, numbers=len(common), magnitude=part.magnitude, leading=part.leading)
    expected = 0.3 * vectors[0] - 0.1 * vectors[1] + 0.8 * vectors[2]
    assert np.linalg.norm(total - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_key_holder_learns_inner_products_only(holder, public):
    """All slots of a decrypted product hold the same sum: nothing of what it is made of is left."""
    vectors = [np.random.default_rng(seed).normal(size=300) for seed in range(2)]
    server, _ = encrypted_clients(holder, public, vectors)
    import tenseal
    from tenseal import sealapi

    context = holder._context
    (product,) = tenseal.ckks_vector_from(context, server.gram(1)[1]).ciphertext()
    plaintext, inner = sealapi.Plaintext(), context.seal_context().data
    sealapi.Decryptor(inner, context.secret_key().data).decrypt(product, plaintext)
    slots = np.array(sealapi.CKKSEncoder(inner).decode_double(plaintext))
    assert len(slots) == SLOTS and np.abs(slots).min() > 1e-3
    assert np.ptp(slots) < 1e-4


def test_a_zero_update_is_in_conflict_with_nobody(holder, public):
    vectors = [np.zeros(100), np.ones(100), -np.ones(100)]
    server, magnitudes = encrypted_clients(holder, public, vectors)
    entries = np.array([holder.decrypt(part)[0] for part in server.gram(1)])
    sizes = torch.tensor(list(magnitudes.values()))
    matrix = decode_gram(entries, clients=3, rows=1, magnitudes=sizes)
    assert torch.equal(matrix[0], torch.zeros(3, dtype=torch.float64))
    assert float(matrix[1, 2]) == pytest.approx(-100)
    measured = np.array([1.6e-5, -1.8e-5, 1000.0]) + 128
    many = decode_gram(measured, clients=2, rows=128, magnitudes=torch.zeros(2))
    assert torch.equal(many, torch.diag(torch.tensor([0.0, 1000.0], dtype=torch.float64)))


def test_factors_next_to_nothing_do_not_become_zero_ciphertexts(holder, public):
    assert drop_negligible({"a": 0.0, "b": 0.5, "c": 1e-30}) == {"b": 0.5}
    server, _ = encrypted_clients(holder, public, [np.ones(5), np.ones(5)])
    (row,) = server.weighted_sum(range(1), {"0": 0.0, "1": 0.0})
    assert np.abs(holder.decrypt(row)).max() < 1e-6


def test_the_server_refuses_a_secret_key(holder):
    with pytest.raises(UnseenError, match="received the secret encryption key"):
        EncryptedServer().open(holder.secret)


def test_the_public_context_reads_nothing(holder, public):
    import tenseal

    ciphertext = tenseal.ckks_vector_from(tenseal.context_from(public), holder.encrypt(np.ones(SLOTS)))
    with pytest.raises(ValueError, match="secret_key"):
        ciphertext.decrypt()
    with pytest.raises(UnseenError, match="only the public part"):
        KeyHolder.open(public)


def test_another_key_and_changed_ciphertexts_are_noticed(holder, public):
    other = KeyHolder.make(products=False)
    rows = to_rows(np.ones(10), 0)
    server = EncryptedServer()
    server.open(public)
    server.take("a", [holder.encrypt(rows[0])])
    server.take("b", [other.encrypt(rows[0])])
    (mixed,) = server.weighted_sum(range(1), {"a": 0.5, "b": 0.5})
    with pytest.raises(UnseenError, match="another key"):
        from_rows([holder.decrypt(mixed)], numbers=10, magnitude=0, leading=1.0)
    entries = np.array([holder.decrypt(part)[0] for part in server.gram(1)])
    with pytest.raises(UnseenError, match="not inner products"):
        decode_gram(entries, clients=2, rows=1, magnitudes=torch.zeros(2))
    changed = bytearray(holder.encrypt(rows[0]))
    changed[len(changed) // 2] ^= 1
    with pytest.raises(UnseenError, match=r"cannot be read|changed in transit"):
        from_rows([holder.decrypt(bytes(changed))], numbers=10, magnitude=0, leading=1.0)


def test_wrong_sizes_are_refused(holder):
    with pytest.raises(UnseenError, match="received 1 ciphertexts where 2 of 4096"):
        from_rows([np.ones(SLOTS)], numbers=FILLED + 1, magnitude=0, leading=1.0)
    with pytest.raises(UnseenError, match="received 2 inner products for 2 clients, not 3"):
        decode_gram(np.ones(2), clients=2, rows=1, magnitudes=torch.zeros(2))
    whole = join_parts([b"one", b"", b"three"])
    assert split_parts(whole) == [b"one", b"", b"three"] and count_parts(whole) == 3
    assert split_parts(join_parts([])) == []
    for cut in (whole[:-1], whole[:10]):
        with pytest.raises(UnseenError, match="truncated or changed"):
            split_parts(cut)
    with pytest.raises(UnseenError, match="cannot be read"):
        KeyHolder.open(holder.secret[:100])
    with pytest.raises(UnseenError, match="cannot be read"):
        holder.decrypt(b"no ciphertext")


def test_a_locked_key_opens_only_for_its_receiver():
    """Client a makes the key for b; b passes it on to c; whoever changes the box is noticed."""
    a, b, c = KeyRing({}), KeyRing({}), KeyRing({})
    told = [ring.answer({STEP: INTRODUCE})[PUBLIC] for ring in (b, c)]
    made = a.answer({STEP: MAKE, ROSTER: torch.stack(told[:1]), PRODUCTS: torch.tensor(False)})
    secret = a.holder().secret
    sent = b"".join(value.numpy().tobytes() for value in made.values())
    assert secret[64:128] not in sent, "the key travels locked"
    box, key_id = made[LOCKED][0], made[KEY_ID]
    with pytest.raises(UnseenError, match="encrypted for another client or changed"):
        c.answer({STEP: TAKE, LOCKED: box, KEY_ID: key_id})
    changed = box.clone()
    changed[-1] ^= 1
    with pytest.raises(UnseenError, match="encrypted for another client or changed"):
        b.answer({STEP: TAKE, LOCKED: changed, KEY_ID: key_id})
    with pytest.raises(UnseenError, match="no encryption key"):
        b.holder()
    b.answer({STEP: TAKE, LOCKED: box, KEY_ID: key_id})
    passed = b.answer({STEP: GIVE, ROSTER: torch.stack(told[1:])})
    c.answer({STEP: TAKE, LOCKED: passed[LOCKED][0], KEY_ID: key_id})
    number = np.linspace(-1, 1, SLOTS)
    assert np.abs(c.holder(key_id).decrypt(a.holder(key_id).encrypt(number)) - number).max() < 1e-6
    with pytest.raises(UnseenError, match="another encryption key than the round's"):
        c.holder(key_id + 1)
    server = EncryptedServer()
    server.open(made[CONTEXT].numpy().tobytes())
    assert not server.context.is_private()


def test_the_cost_is_estimated_from_a_calibration():
    from unseen.models import Layout
    from unseen.privacy.he.ciphertext_packing import CiphertextLayout

    measured = calibrate(products=True)
    assert min(measured.encrypt, measured.decrypt, measured.weigh) > 0 and measured.fresh_bytes > 100_000
    division = CiphertextLayout.of(Layout.of(torch.nn.Linear(100, 1000)))
    assert division.sizes == (101_000, 1) and division.rows == (range(25), range(25, 26))
    one, two = (estimate(measured, division, clients=5, products=products) for products in (False, True))
    assert one.client_up == two.client_up == 26 * measured.fresh_bytes
    assert one.at_server < two.at_server
    assert two.opening_down == (26 + 15) * measured.summed_bytes
    assert "a client sends 6." in describe(one, clients=5, plain=404_000)


def test_a_missing_library_says_what_to_install(monkeypatch, make_experiment):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name in missing:
            raise ImportError(name)
        return real(name, *rest, **more)

    protection = make_protection("encrypted")
    monkeypatch.setattr(builtins, "__import__", without)
    for missing in (("tenseal",), ("cryptography",)):
        with pytest.raises(UnseenError, match=rf"{missing[0]}, which is not installed.*unseen\[he\]"):
            protection.check(None)


def test_gram_is_not_decrypted_for_a_method_that_needs_none(make_experiment):
    from unseen.engine.experiment import Workspace
    from unseen.privacy.he.aggregate import DECIDE, decide_coefficients

    workspace = Workspace(make_experiment("fedavg"))
    ring = KeyRing({})
    ring.make(torch.empty(0, 32, dtype=torch.uint8), products=False)
    context = ClientContext(
        client="a",
        round=1,
        seed=0,
        method=workspace.experiment.method.traits,
        layout=workspace.flat.layout,
        state=ring.state,
    )
    with pytest.raises(UnseenError, match="fedavg needs no Gram matrix"):
        decide_coefficients({STEP: DECIDE}, ring.holder(), context)
