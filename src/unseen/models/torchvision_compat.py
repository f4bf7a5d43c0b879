"""Make torchvision (and so timm) importable where its compiled operators do not load.

A torchvision built for CUDA next to a CPU torch fails at import because the operators it refers to do not
exist. Declaring the two of them first is enough for models and transforms; the detection operators themselves
stay unusable, and nothing here needs them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from unseen.errors import UnseenError, missing_extra

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []
"""Keeps the declarations, which are removed with their last reference."""


def import_torchvision(purpose: str) -> ModuleType:
    """Import torchvision, declaring its operators first where the compiled ones cannot be loaded."""
    if "torchvision" not in sys.modules:
        spec = importlib.util.find_spec("torchvision")
        if spec is None:
            raise missing_extra("torchvision", "zoo", purpose)
        _declare_missing_operators([Path(place) for place in spec.submodule_search_locations or []])
    return _import("torchvision")


def import_timm(purpose: str) -> ModuleType:
    """Import timm, which itself imports torchvision."""
    if importlib.util.find_spec("timm") is None:
        raise missing_extra("timm", "zoo", purpose)
    import_torchvision(purpose)
    return _import("timm")


def import_open_clip(purpose: str) -> ModuleType:
    """Import open_clip, which itself imports timm and torchvision."""
    if importlib.util.find_spec("open_clip") is None:
        raise missing_extra("open_clip_torch", "clip", purpose)
    import_timm(purpose)
    return _import("open_clip")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UnseenError(
            f"{name} is installed but does not import with torch {torch.__version__} ({reason}): "
            "install matching versions with pip install 'unseen[zoo]'"
        ) from error


def _declare_missing_operators(folders: list[Path]) -> None:
    if _declared or _loads_compiled(folders):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)


def _loads_compiled(folders: list[Path]) -> bool:
    for folder in folders:
        for path in [*folder.glob("_C*.so"), *folder.glob("_C*.pyd")]:
            try:
                torch.ops.load_library(str(path))
            except OSError:
                continue
            return True
    return False
