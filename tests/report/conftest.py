"""Run folders as `unseen train` writes them, made up: one for each situation a report must cope with."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unseen.seeding import numpy_generator as generator

NASTY = ["<script>alert(1)</script>", 'it\'s "quoted" & [0].x', "Zürich 東京 %d {0}", "a|b\\c"]


def png(number: int) -> str:
    pixels = generator(number, "picture").integers(0, 255, (8, 8), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, format="PNG")
    return base64.b64encode(held.getvalue()).decode()


def write_run(
    folder: Path,
    *,
    method: str = "fedavg",
    domains: list[str] | None = None,
    held_out: list[str] | None = None,
    classes: list[str] | None = None,
    rounds: int = 12,
    task: str = "classification",
    finished: bool = True,
    seed: int = 0,
) -> Path:
    domains = domains or ["0", "15", "30", "45", "60", "75"]
    held_out = [domains[-1]] if held_out is None else held_out
    classes = classes or [str(i) for i in range(10)]
    sources = [name for name in domains if name not in held_out]
    run = _Fake(folder, method, domains, held_out, sources, classes, rounds, task, seed)
    run.planned = rounds if finished else rounds + 7
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(run.config(), encoding="utf-8")
    records = run.records() + ([run.final()] if finished else [])
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    if finished:
        (folder / "result.json").write_text(json.dumps(run.result()), encoding="utf-8")
    return folder


class _Fake:
    def __init__(
        self, folder: Path, method: str, domains: list[str], held_out: list[str], sources: list[str],
        classes: list[str], rounds: int, task: str, seed: int,
    ) -> None:  # fmt: skip
        self.folder, self.method, self.domains, self.held_out = folder, method, domains, held_out
        self.sources, self.classes, self.rounds, self.task, self.seed = sources, classes, rounds, task, seed
        self.planned = rounds
        self.draw = generator(seed, "fake run")
        self.regression = task == "regression"
        self.primary = "pearson_r" if self.regression else "accuracy"

    def config(self) -> str:
        quoted = ", ".join(json.dumps(name) for name in self.held_out)
        return (
            f'data = "rotated-digits"\nmethod = "{self.method}"\nmodel = "small-cnn"\nhold_out = [{quoted}]\n'
            f"rounds = {self.planned}\nlocal_epochs = 1\nbatch_size = 64\nlr = 0.05\nseed = {self.seed}\n"
            f'task = "{self.task}"\nselection = "source-validation"\n\n[settings]\nweighting = "samples"\n'
        )

    def metrics(self, round_: int, held: bool) -> dict[str, Any]:
        gain = 1 - math.exp(-round_ / 4)
        noise = float(self.draw.normal(0, 0.012))
        if self.regression:
            return {"rmse": 4.2 - 2.1 * gain + (0.8 if held else 0) + noise * 5,
                    "pearson_r": 0.9 * gain - noise, "loss": 3 - 2 * gain}  # fmt: skip
        level = 0.1 + gain * (0.80 if held else 0.87) + noise
        return {"accuracy": min(1.0, level), "loss": 2.3 - 2 * gain}

    def scores(self, round_: int) -> list[dict[str, Any]]:
        sources = [
            {"domain": name, "split": "validation", "count": 36, "metrics": self.metrics(round_, False)}
            for name in self.sources
        ]
        return sources + [
            {"domain": name, "split": "target", "count": 180, "metrics": self.metrics(round_, True)}
            for name in self.held_out
        ]

    def records(self) -> list[dict[str, Any]]:
        counts = {
            domain: {name: int(self.draw.integers(2, 60)) for name in self.classes} for domain in self.domains
        }
        data = {
            "name": "rotated-digits", "task": self.task, "input_shape": [1, 8, 8], "domains": self.domains,
            "classes": [] if self.regression else self.classes,
            "class_counts": {} if self.regression else counts,
            "notes": ["1797 digits were divided", "2 files were left out: <b>not images</b>"],
        }  # fmt: skip
        clients = [
            {"name": name, "domains": [name], "train": 240, "validation": 36, "test": 24}
            for name in self.sources
        ]
        start = {"event": "start", "time": "2031-02-03T04:05:06Z", "run_id": "4f1c9a77d2e0",
                 "version": "0.1.0", "parameters": 61706, "data": data, "clients": clients,
                 "held_out": self.held_out}  # fmt: skip
        out: list[dict[str, Any]] = [start]
        for round_ in range(1, self.rounds + 1):
            out += self.one_round(round_)
        out.insert(
            2, {"event": "fault", "round": 1, "client": self.sources[0], "reason": "loss became <nan>"}
        )
        out.insert(2, {"event": "resume", "round": 1, "time": "2031-02-03T04:15:06Z"})
        return out

    def one_round(self, round_: int) -> list[dict[str, Any]]:
        size = len(self.sources)
        cosines = self.draw.uniform(-0.3, 1, (size, size)).round(3).tolist()
        weights = self.draw.dirichlet([5.0] * size).round(4).tolist()
        diagnostics = {"update_norm": 3 / round_, "client_weights": weights, "cosine": cosines}
        sent = 246_824 * size
        return [
            {"event": "round", "round": round_, "clients": self.sources, "loss": 2.3 * math.exp(-round_ / 5),
             "seconds": 1.1 + 0.2 * float(self.draw.random()), "samples": 240 * size, "bytes_up": sent,
             "bytes_down": sent, "diagnostics": diagnostics},
            {"event": "evaluation", "round": round_, "seconds": 0.21, "scores": self.scores(round_)},
        ]  # fmt: skip

    def final(self) -> dict[str, Any]:
        selected = max(1, self.rounds - 2)
        scores = self.scores(selected)
        record: dict[str, Any] = {"event": "final", "round": selected, "scores": scores}
        if self.regression:
            truth = self.draw.normal(0, 3, 150)
            guess = truth + self.draw.normal(0, 1, 150)
            return record | {
                "scatter": [
                    {"domain": name, "truth": truth.tolist(), "predicted": guess.tolist()}
                    for name in self.held_out
                ]
            }
        for score in scores:
            score["per_class"] = {name: float(self.draw.uniform(0.5, 1)) for name in self.classes}
            score["per_class"][self.classes[-1]] = None
            score["metrics"]["worst_class_accuracy"] = 0.5
        size = len(self.classes)
        matrix = (self.draw.integers(0, 3, (size, size)) + np.eye(size, dtype=int) * 15).tolist()
        examples = [
            {"domain": name, "truth": self.classes[i % size], "predicted": self.classes[(i + i % 3) % size],
             "probability": 0.55 + 0.03 * i, "png": png(i)}
            for name in self.held_out
            for i in range(12)
        ]  # fmt: skip
        confusion = [{"domain": name, "matrix": matrix} for name in self.held_out]
        return record | {"confusion": confusion, "examples": examples}

    def result(self) -> dict[str, Any]:
        target, oracle, last = (self.metrics(round_, True) if self.held_out else {} for round_ in (10, 12, 8))
        return {
            "run_id": "4f1c9a77d2e0", "method": self.method, "model": "small-cnn", "data": "rotated-digits",
            "task": self.task, "held_out": self.held_out, "seed": self.seed, "rounds": self.rounds,
            "selected_round": max(1, self.rounds - 2), "selection": "source-validation",
            "metrics": {
                "target": target, "target_oracle": oracle, "target_last": last,
                "source_validation": self.metrics(12, False), "in_domain": None,
                "worst_domain": {"domain": self.domains[-1], self.primary: 0.4},
            },
            "target_domains": dict.fromkeys(self.held_out, target),
            "seconds": 83.4, "bytes_up": 14_809_440, "bytes_down": 14_809_440,
            "privacy": ["model update (61706 float32 values a round)", "number of training samples"],
        }  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "run", **settings: Any) -> Path:
        return write_run(tmp_path / name, **settings)

    return make


@pytest.fixture
def nasty_names() -> list[str]:
    return list(NASTY)


SITUATIONS: dict[str, dict[str, Any]] = {
    "classification": {},
    "regression": {"task": "regression", "domains": ["north", "east", "south", "west"]},
    "unfinished": {"finished": False, "rounds": 5},
    "nasty names": {"domains": NASTY, "classes": [*NASTY, "x" * 80], "method": "fedavg"},
    "single round": {"rounds": 1},
    "many classes": {"classes": [f"class number {i}" for i in range(345)], "rounds": 3},
    "many domains": {"domains": [f"hospital {i:02d}" for i in range(40)], "held_out": ["hospital 00"]},
    "several held out": {"domains": ["art_painting", "cartoon", "photo", "sketch"],
                         "held_out": ["photo", "sketch"],
                         "classes": ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]},
    "nothing held out": {"held_out": []},
    "long names": {"domains": [f"Städtisches Klinikum mit langem Namen und Nr. {i}" for i in range(5)]},
}  # fmt: skip


@pytest.fixture(params=list(SITUATIONS))
def any_run(request: pytest.FixtureRequest, make_run: Callable[..., Path]) -> Path:
    return make_run(**SITUATIONS[request.param])
