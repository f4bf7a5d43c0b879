"""`--effort NAME`: strong choices for every option that the user leaves open; quick, standard or thorough.

Choices are for photographs: a pretrained network, how much of it is trained, image size, schedule and budget.
They were made by source validation and by leaving out one source of PACS (docs/training.md says what was
looked at). Tables and images of up to 32 pixels keep the plain defaults. Every choice becomes an ordinary
option of the run: it is shown, recorded, and overridden by naming the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unseen.data import DataSet
from unseen.data.sources import DataRequest, photo_side, resolve_data_root
from unseen.errors import unknown_name
from unseen.hparams import setting_names
from unseen.methods import METHODS
from unseen.methods.base import AS_THE_METHOD
from unseen.models import MODELS
from unseen.models.model_names import plain_name

NO_EFFORT = "none"
DEFAULT_EFFORT = "standard"
SMALL = 32
"""Images up to this side are not photographs: pretrained networks do not help, and mirroring harms digits."""


@dataclass(frozen=True)
class Effort:
    """The choices of one level.

    image_size   of photographs; smaller ones are enlarged, since rates and weights are for this size
    trained      choices for methods that train by gradients
    closed_form  choices for methods that solve for the head in one round
    """

    summary: str
    image_size: int
    closed_form_size: int
    trained: Mapping[str, Any]


_COMMON: dict[str, Any] = {"weights": "auto", "precision": "auto"}
_FINE_TUNING: dict[str, Any] = {
    **_COMMON,
    "batch_norm": "frozen",
    "augment": "standard",
    "local_epochs": 1,
    "batch_size": 32,
    "head_lr": 3.0,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "schedule": "cosine",
}
_ON_FEATURES: dict[str, Any] = {
    "train": "head",
    "views": 1,
    "augment": "none",
    "head_lr": 1.0,
    "label_smoothing": 0.0,
}
"""For methods that train a small part on the features of a frozen network, whose optimizer is their own."""
EFFORTS: dict[str, Effort] = {
    "quick": Effort(
        "minutes: the last stage of a pretrained network on cached features",
        image_size=128,
        closed_form_size=160,
        trained={
            **_FINE_TUNING,
            "train": "last-stage",
            "views": 3,
            "rounds": 10,
            "batches_per_epoch": 20,
            "evaluate_every": 2,
            "lr": 0.005,
        },
    ),
    "standard": Effort(
        "up to half an hour on two cores: all of a pretrained network",
        image_size=128,
        closed_form_size=160,
        trained={
            **_FINE_TUNING,
            "augment": "standard+mixstyle",
            "train": "all",
            "rounds": 20,
            "schedule_per": "step",
            "warmup": 2.0,
            "batches_per_epoch": 20,
            "evaluate_every": 5,
            "lr": 0.004,
        },
    ),
    "thorough": Effort(
        "hours on two cores: larger images and three times the steps",
        image_size=160,
        closed_form_size=160,
        trained={
            **_FINE_TUNING,
            "augment": "standard+mixstyle",
            "train": "all",
            "rounds": 45,
            "schedule_per": "step",
            "warmup": 2.0,
            "batches_per_epoch": 20,
            "evaluate_every": 5,
            "lr": 0.004,
        },
    ),
}


def with_effort(given: Mapping[str, Any], *, data: DataSet | None = None) -> dict[str, Any]:
    """Add the choices of the effort that the options name, `standard` if none, to the options given.

    given  options by the names of `RunConfig`'s fields; none of them is changed
    data   samples already in memory, in place of those that the options name
    """
    name = given.get("effort") or _default_effort(given, data)
    if name == NO_EFFORT:
        return {**given, "effort": NO_EFFORT}
    if name not in EFFORTS:
        raise unknown_name("effort", name, [*EFFORTS, NO_EFFORT])
    chosen = _choices(EFFORTS[name], given, data)
    merged = {**chosen, **given, "effort": name if chosen else NO_EFFORT}
    return merged | ({"settings": chosen["settings"]} if "settings" in chosen else {})


def describe_choices(options: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Describe in one line what the effort chose; empty if it chose nothing."""
    if options.get("effort", NO_EFFORT) == NO_EFFORT:
        return ""
    added = {key: value for key, value in options.items() if key not in given and key != "effort"}
    shown = ", ".join(f"{key.replace('_', '-')} {_shown(value)}" for key, value in added.items())
    return f"effort {options['effort']} (--effort, or name an option to change it): {shown}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={one}" for key, one in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default_effort(given: Mapping[str, Any], data: DataSet | None) -> str:
    """Choose the standard effort, but none where the samples are elsewhere or options say what to train."""
    elsewhere = given.get("engine") == "flower" and data is None
    return NO_EFFORT if elsewhere else DEFAULT_EFFORT


def _choices(effort: Effort, given: Mapping[str, Any], data: DataSet | None) -> dict[str, Any]:
    method = METHODS[str(given.get("method", "fedavg"))]
    side, closed_form = _side(given, data), method.default_rounds is not None
    solved = {"rounds": method.default_rounds} if closed_form else {}
    if side <= SMALL:
        return solved
    size = _model_side(given) or (effort.closed_form_size if closed_form else effort.image_size)
    sized = {} if data is not None else {"image_size": size}
    if closed_form:
        return {**sized, **solved, **_COMMON, "augment": "none"}
    settings = {**method.effort_settings, **given.get("settings", {})}
    named = given.get("weighting", AS_THE_METHOD) != AS_THE_METHOD
    if not named and "weighting" in setting_names(method.settings_type()):
        settings = {"weighting": "uniform", **settings}
    frozen = {**_ON_FEATURES, **method.effort_options} if method.default_train else {}
    return {**sized, **effort.trained, **frozen, **({"settings": settings} if settings else {})}


def _model_side(given: Mapping[str, Any]) -> int:
    """Return the side of the images that a named model's published weights are for; 0 = any."""
    plain = plain_name(str(given.get("model", "")))
    return MODELS[plain].image_size if plain in MODELS else 0


def _side(given: Mapping[str, Any], data: DataSet | None) -> int:
    """Find the side of the sources' photographs; 0 if there are none. Held-out ones are not looked at."""
    if data is not None:
        return data.input_shape[-1] if data.is_image and not data.is_measured else 0
    if size := given.get("image_size"):
        return int(size)
    root = resolve_data_root(given.get("data_root"))
    held_out = given.get("hold_out", ())
    without = (held_out,) if isinstance(held_out, str) else tuple(held_out)
    request = DataRequest(
        source=str(given.get("data", "")),
        root=root,
        image_column=given.get("image_column", ""),
        domain_column=given.get("domain_column", DataRequest.domain_column),
        target_column=given.get("target", DataRequest.target_column),
        settings=given.get("data_settings", {}),
    )
    return photo_side(request, without)
