"""Weights of the clients in each row of a bench: tables that compare methods must not hide that they differ.

Tables name the weights where the grid names `weighting` anywhere; grids from before that option keep their
tables as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.methods import make_method
from unseen.methods.base import AS_THE_METHOD

OPTION = "weighting"


def row_weights(common: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Map each label of a grid to the weights of its clients; empty if the grid does not name `weighting`."""
    if not any(OPTION in options for options in (common, *methods.values())):
        return {}
    return {label: _weights(without_idle_weighting({**common, **own}, own, label), label)
            for label, own in methods.items()}  # fmt: skip


def with_named_weights(common: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a grid's common options; they name `weighting` if rows would differ in it."""
    named = {OPTION: AS_THE_METHOD, **common}
    return named if len(set(row_weights(named, methods).values())) > 1 else dict(common)


def without_idle_weighting(options: Mapping[str, Any], own: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Leave out a weighting common to all rows where a method averages no clients or fixes their weights.

    own  what the label itself sets: a weighting there is kept, and refused where it cannot act
    """
    if OPTION not in options or OPTION in own:
        return dict(options)
    fixed = make_method(str(options.get("method", label))).explain_fixed_weights()
    return {name: value for name, value in options.items() if not (fixed and name == OPTION)}


def _weights(options: Mapping[str, Any], label: str) -> str:
    name = str(options.get("method", label))
    weighting = str(options.get(OPTION, AS_THE_METHOD))
    return make_method(name, options.get("settings"), weighting=weighting).weights_text
