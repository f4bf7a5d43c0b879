"""Forms of what clients send under encryption: types and sizes, checked before the server uses them.

What a ciphertext holds, nobody but a key holder can check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import Layout
from unseen.privacy import crypto
from unseen.privacy.context import Message
from unseen.privacy.he.aggregate import COEFFICIENTS, DECISIONS, MEAN, NAMES
from unseen.privacy.he.ciphertext_packing import (
    CIPHERTEXTS,
    COUNTERS,
    MAGNITUDES,
    PARTS,
    CiphertextLayout,
    check_ciphertexts,
)
from unseen.privacy.he.encrypted_sums import ADDED, ADDENDS, CONTENTS, check_addends, describe_extras
from unseen.privacy.he.key_exchange import (
    CONTEXT,
    GIVE,
    INTRODUCE,
    KEY_ID,
    LOCKED,
    MAKE,
    PUBLIC,
    ROSTER,
    STEP,
    TAKE,
)
from unseen.privacy.he.sum_approval import APPROVAL, APPROVE, CODE_BYTES, PRESENT
from unseen.privacy.serialization import json_from_tensor, tensor_to_bytes
from unseen.training import Update

LARGEST_MAGNITUDE = 400
Form = tuple[torch.dtype, tuple[int | None, ...]]


def explain_sealed(update: Update, layout: Layout, described: Mapping[str, Tensor]) -> str:
    """Explain why an encrypted update cannot be one of this model and method; "" if it can."""
    extras = update.extras
    texts = [extras[kind] for kind in (CIPHERTEXTS, ADDENDS, CONTENTS) if kind in extras]
    magnitudes, counters = extras.get(MAGNITUDES), extras.get(COUNTERS, torch.empty(0))
    if CIPHERTEXTS not in extras or any(text.dtype is not torch.uint8 or text.ndim != 1 for text in texts):
        return "did not send its ciphertexts as bytes"
    sized = magnitudes is not None and magnitudes.dtype is torch.int64 and magnitudes.shape == (PARTS,)
    if magnitudes is None or not sized or int(magnitudes.abs().max()) > LARGEST_MAGNITUDE:
        return "sent magnitudes that no update has"
    if counters.dtype is not torch.float32 or counters.ndim != 1 or not bool(torch.isfinite(counters).all()):
        return "sent batch counters that are not numbers"
    expected = sorted(describe_extras(described), key=_kind)
    try:
        contents = json_from_tensor(extras[CONTENTS]) if CONTENTS in extras else []
        if described and sorted(contents, key=_kind) != expected:
            return "sent other kinds of values than the method merges"
        check_ciphertexts("", extras, CiphertextLayout.of(layout))
        check_addends("", extras, contents)
    except (UnseenError, ValueError, TypeError, KeyError, RecursionError):
        return "sent other ciphertexts than this model has: does it train the same one?"
    return "" if update.samples > 0 else "says that it trained on no samples"


def explain_key_answer(answer: Message, asked: Message) -> str:
    """Explain why an answer does not fit its step of the key exchange or of decryption; "" if it does."""
    step = asked[STEP]
    short = {
        int(INTRODUCE): (PUBLIC, crypto.KEY_BYTES),
        int(PRESENT): (APPROVAL, 0),
        int(APPROVE): (APPROVAL, CODE_BYTES),
    }
    if int(step) in short:
        kind, length = short[int(step)]
        return _explain(answer, {kind: (torch.uint8, (length,))})
    rows = len(asked[ROSTER]) if ROSTER in asked else 0
    locked: dict[str, Form] = {LOCKED: (torch.uint8, (rows, None))}
    if torch.equal(step, MAKE):
        own: dict[str, Form] = {CONTEXT: (torch.uint8, (None,)), KEY_ID: (torch.uint8, (crypto.KEY_BYTES,))}
        return _explain(answer, locked | own)
    if torch.equal(step, GIVE):
        return _explain(answer, locked)
    if torch.equal(step, TAKE):
        same = KEY_ID in answer and torch.equal(answer[KEY_ID], asked[KEY_ID])
        return "" if same else "did not confirm the key that it was given"
    if NAMES in asked:
        clients = len(json.loads(tensor_to_bytes(asked[NAMES])))
        decided: dict[str, Form] = {COEFFICIENTS: (torch.float64, (clients,)), DECISIONS: (torch.int64, (2,))}
        return _explain(answer, decided)
    added: dict[str, Form] = {ADDED: (torch.float64, (None,))} if ADDENDS in asked else {}
    return _explain(answer, {MEAN: (torch.float32, (None,)), **added})


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry["kind"])


def _explain(answer: Message, forms: Mapping[str, Form]) -> str:
    """Explain why an answer has other values than these; None stands for any length."""
    if set(answer) != set(forms):
        return f"did not answer with {' and '.join(forms)} alone"
    for kind, (dtype, shape) in forms.items():
        found = answer[kind]
        fits = found.ndim == len(shape) and all(
            want in (None, size) for want, size in zip(shape, found.shape, strict=True)
        )
        if found.dtype is not dtype or not fits:
            return f"sent {kind} of shape {tuple(found.shape)}, expected {shape}"
        if found.is_floating_point() and not bool(torch.isfinite(found).all()):
            return f"sent {kind} with numbers that are not finite"
    return ""
