"""Messages of secure aggregation: their keys, and what types and shapes the server accepts from clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import Layout
from unseen.privacy import crypto
from unseen.privacy.context import Message, MethodTraits
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.packing import HEAD, packed_size
from unseen.privacy.serialization import json_from_tensor, tensor_to_bytes

STEP = "step"
ADVERTISE, DEAL, CHECK, REVEAL = (torch.tensor([number]) for number in range(4))
ROSTER, NAMES, PROOFS = "roster", "names", "signatures of the roster"
PART, DEALT, SURVIVORS = "taking part", "sent shares", "survivors"
PUBLIC, PROOF = "public keys", "signature of the public keys"
SHARES, COMMITMENTS = "encrypted shares", "digests of the shares"
UNUSABLE, REVEALED = "clients whose shares are unusable", "revealed shares"
MASKED, CONTENTS = "masked numbers", "what the masked numbers are"

BOX_BYTES = 2 * shamir.SHARE_BYTES + crypto.TAG_BYTES
"""An encrypted pair of shares, with the tag that authenticates it."""
DIGEST_BYTES = 32
LARGEST_PROOF = 4096
"""Bytes of a signature and what belongs to it."""

TYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
LARGEST_CONTENTS = 100_000
"""Bytes of the description of a masked row."""


def explain_answer(answer: Message, asked: Message) -> str:
    """Explain why an answer does not have the form of its step; "" if it has."""
    step = asked[STEP]
    if torch.equal(step, ADVERTISE):
        return explain_keys(answer)
    clients = len(asked[ROSTER])
    if torch.equal(step, DEAL):
        forms = {SHARES: (clients, BOX_BYTES), COMMITMENTS: (clients, 2 * DIGEST_BYTES)}
        return _explain_kinds(answer, forms) or _explain_bytes(answer, forms)
    if torch.equal(step, CHECK):
        said = answer.get(UNUSABLE)
        fits = said is not None and said.dtype is torch.bool and said.shape == (clients,)
        return _explain_kinds(answer, [UNUSABLE]) or ("" if fits else f"did not say of whom: {UNUSABLE}")
    forms = {REVEALED: (clients, shamir.SHARE_BYTES)}
    return _explain_kinds(answer, forms) or _explain_bytes(answer, forms)


def explain_keys(answer: Message) -> str:
    """Explain why an answer is not two public keys with which others can agree on secrets; "" if it is.

    A point of low order would make every secret known, and every other client would refuse the roster.
    """
    if reason := _explain_kinds(answer, [PUBLIC], optional=[PROOF]):
        return reason
    proof = answer.get(PROOF)
    if proof is not None and (
        proof.dtype is not torch.uint8 or proof.ndim != 1 or len(proof) > LARGEST_PROOF
    ):
        return f"sent a {PROOF} that cannot be one"
    if reason := _explain_bytes(answer, {PUBLIC: (2 * crypto.KEY_BYTES,)}):
        return reason
    both = tensor_to_bytes(answer[PUBLIC])
    try:
        for key in (both[: crypto.KEY_BYTES], both[crypto.KEY_BYTES :]):
            crypto.agree(crypto.new_secret(), key)
    except UnseenError:
        return f"sent {PUBLIC} with which nobody can agree on a secret"
    return ""


def _explain_kinds(answer: Message, kinds: Collection[str], optional: Collection[str] = ()) -> str:
    if set(answer) - set(optional) != set(kinds):
        return f"did not answer with {' and '.join(kinds)} alone"
    return ""


def _explain_bytes(answer: Message, forms: Mapping[str, tuple[int, ...]]) -> str:
    for kind, shape in forms.items():
        found = answer[kind]
        if found.dtype is not torch.uint8 or tuple(found.shape) != shape:
            return f"sent {kind} of shape {tuple(found.shape)}, expected bytes of shape {shape}"
    return ""


def explain_row(
    masked: Tensor | None,
    contents: Tensor | None,
    *,
    method: MethodTraits,
    layout: Layout,
    described: Mapping[str, Tensor],
) -> str:
    """Explain why a masked row, and what it says it holds, cannot be a client's of this method."""
    if masked is None or contents is None:
        return "did not send its masked numbers and what they are"
    try:
        entries = _read_contents(contents)
        extra = sum(map(_size, entries))
    except (ValueError, TypeError, KeyError, RecursionError):
        return "sent an unreadable description of its masked numbers"
    if any(entry["kind"] not in method.merges for entry in entries):
        return "sent masked numbers of a kind that nobody asked for"
    sent = {entry["kind"]: (tuple(entry["shape"]), entry["type"]) for entry in entries}
    for kind, expected in described.items():
        form = tuple(expected.shape), str(expected.dtype).removeprefix("torch.")
        if sent.get(kind) != form:
            return f"did not send {kind!r} as {form[1]} of shape {form[0]}"
    if masked.dtype is not torch.int64 or masked.shape != (HEAD + layout.size + extra,):
        return (
            f"sent {tuple(masked.shape)} masked numbers, its description and the model need "
            f"{HEAD + layout.size + extra}"
        )
    return ""


def _read_contents(contents: Tensor) -> list[dict[str, Any]]:
    if contents.dtype is not torch.uint8 or contents.ndim != 1 or len(contents) > LARGEST_CONTENTS:
        raise ValueError("not a text")
    entries = json_from_tensor(contents)
    if not isinstance(entries, list) or len({entry["kind"] for entry in entries}) != len(entries):
        raise ValueError("not a list of different kinds")
    return entries


def _size(entry: Any) -> int:
    """Count the numbers of an entry; refuse one that is not built as it should be."""
    shape = entry["shape"]
    whole = isinstance(shape, list) and all(type(side) is int and 0 <= side < 1 << 31 for side in shape)
    if not whole or entry["type"] not in TYPES or not isinstance(entry["kind"], str):
        raise ValueError("not an entry of the contents")
    return packed_size(entry)
