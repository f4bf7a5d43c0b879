"""Records of a run as they are while it trains, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NASTY = "<img src=x onerror=\"document.title='hacked'\"><script>alert(1)</script>"


def write_live_run(
    folder: Path, *, rounds: int = 3, planned: int = 10, domains: tuple[str, ...] = ("a", "held")
) -> Path:
    """A run folder as it is while its rounds are trained; the last domain is held out."""
    held = domains[-1]
    folder.mkdir(parents=True, exist_ok=True)
    values = {"data": "made", "method": "fedavg", "model": "mnist-cnn", "rounds": planned, "seed": 0}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    text = "\n".join([*lines, f"hold_out = [{json.dumps(held)}]", 'selection = "source-validation"', ""])
    (folder / "config.toml").write_text(text, encoding="utf-8")
    data = {"name": "made", "task": "classification", "domains": list(domains), "classes": ["x", "y"]}
    start = {"event": "start", "data": data, "held_out": [held], "parameters": 7, "clients": []}
    numbers = range(1, rounds + 1)
    append(folder, start, *(record for number in numbers for record in one_round(number, domains)))
    return folder


def one_round(number: int, domains: tuple[str, ...] = ("a", "held")) -> list[dict[str, Any]]:
    splits = ["validation"] * (len(domains) - 1) + ["target"]
    metrics = {"accuracy": 1 - 1 / (number + 1), "loss": 1.0}
    scores = [
        {"domain": name, "split": split, "count": 10, "metrics": dict(metrics)}
        for name, split in zip(domains, splits, strict=True)
    ]
    return [
        {"event": "round", "round": number, "clients": list(domains[:-1]), "loss": 1 / number, "seconds": 2.0,
         "samples": 20, "bytes_up": 1000, "bytes_down": 1000},
        {"event": "evaluation", "round": number, "seconds": 1.0, "scores": scores},
    ]  # fmt: skip


def append(folder: Path, *records: dict[str, Any]) -> None:
    with (folder / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))
