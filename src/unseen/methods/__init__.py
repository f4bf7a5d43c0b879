"""One file or package per method: its settings, its client half, its server half, its paper.

Every module in this folder is imported here, so adding a method means adding one file that registers it.
"""

import importlib
import pkgutil

from unseen.hparams import Settings, describe_settings, setting
from unseen.methods.base import FAMILIES, METHODS, Method, Paper, group_by_family, make_method, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FAMILIES",
    "METHODS",
    "Method",
    "Paper",
    "Settings",
    "describe_settings",
    "group_by_family",
    "make_method",
    "register",
    "setting",
]
