"""Tiny images at four sites, and a stand-in for Flower that calls the sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from unseen.config import RunConfig
from unseen.deploy.flower.message import SiteMessage, from_flower_record, to_flower_record
from unseen.deploy.site.site import Site

SITES = ("a", "b", "c", "held")
QUICK: dict[str, dict[str, Any]] = {"csac": {"acquisition_epochs": 2}}
"""Settings that make methods short where length is not the point."""
TINY = "min_group = 1\n"
"""A policy under which splits and classes of a few samples are used."""
Spoil = Callable[[str, SiteMessage, SiteMessage], SiteMessage]


def make_images(folder: Path, *, sites: Iterable[str] = SITES, missing: tuple[str, str] = ("b", "y")) -> Path:
    """Folders site/class/image, 8x8: the class is a bright row, every site has its own tint and numbers."""
    for number, site in enumerate(sites):
        generator = np.random.default_rng(number)
        for label, name in enumerate(("x", "y", "z")):
            if (site, name) == missing:
                continue
            place = folder / site / name
            place.mkdir(parents=True)
            for i in range(7 + number + label):
                pixels = generator.integers(0, 90, (8, 8, 3))
                pixels[2 * label : 2 * label + 2] += 120
                pixels[..., number % 3] += 40
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return folder


def write_policy(home: Path, text: str) -> None:
    """Write a site's policy."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "policy.toml").write_text(text, encoding="utf-8")


def tiny_job(data: Path, **changes: Any) -> RunConfig:
    """A job of three short rounds with the site `held` held out."""
    values: dict[str, Any] = {
        "data": str(data),
        "hold_out": ("held",),
        "model": "mnist-cnn",
        "image_size": 8,
        "rounds": 3,
        "batch_size": 4,
        "lr": 0.02,
        "validation": 0.2,
        "threads": 1,
        "workers": 1,
        "device": "cpu",
    }
    return RunConfig.from_mapping({**values, **changes})


class LoopbackGrid:
    """Flower's grid as far as we use it; sites answer in this process and, being tiny, allow small groups.

    absent  sites that are not connected
    silent  sites that get messages and never answer
    spoil   changes an answer on its way back: called with site, question and answer
    log     every question and answer that passed, as (site, question, answer)
    suffix  of the sites' files, where their data is one
    """

    def __init__(self, data: Path, home: Path, names: Iterable[str] = SITES, suffix: str = "") -> None:
        self.sites = [Site(name, str(data / f"{name}{suffix}"), home / name) for name in names]
        for site in self.sites:
            write_policy(site.home, TINY)
        self.absent: set[str] = set()
        self.silent: set[str] = set()
        self.spoil: Spoil = lambda site, question, answer: answer
        self.log: list[tuple[str, SiteMessage, SiteMessage]] = []
        self._replies: dict[str, Any] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self) -> list[int]:
        return [100 + place for place, site in enumerate(self.sites) if site.name not in self.absent]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            number = str(len(self._replies) + len(ids))
            ids.append(number)
            site = self.sites[message.metadata.dst_node_id - 100]
            question = from_flower_record(message.content)
            if site.name in self.silent:
                self._replies[number] = None
                continue
            answer = self.spoil(site.name, question, site.answer(question))
            self.log.append((site.name, question, answer))
            self._replies[number] = SimpleNamespace(
                has_error=lambda: False,
                content=to_flower_record(answer),
                metadata=SimpleNamespace(reply_to_message_id=number),
            )
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [reply for number in ids if (reply := self._replies[number]) is not None]
