"""Unseen: one model trained across silos that cannot share data, judged on a domain none has seen."""

__version__ = "0.1.0"
