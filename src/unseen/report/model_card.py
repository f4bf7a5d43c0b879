"""The model card of a run, from its records: what the model is for, how good it is, what left, its limits.

`model-card.json` has it for programs, with SHA-256 sums of the run's files, and `model-card.md` for people.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from unseen import __version__
from unseen.checksums import sha256_of
from unseen.errors import UnseenError, UsageError
from unseen.fileio import to_json, write_text
from unseen.report.card_limits import find_limits
from unseen.report.card_markdown import card_markdown
from unseen.runs.energy import JOULES_PER_KWH, WATTS, read_sessions, sum_energy
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run

FORMAT = 1
LIBRARIES = ("torch", "numpy", "safetensors", "timm", "flwr")
Card = dict[str, Any]


def write_model_card(folder: Path, *, key: str = "") -> Path:
    """Write both files of the card of a finished run, and return the path of the JSON file.

    A signature of an earlier card is removed: it would not fit this one.

    key  public key, as one line, of whoever will sign the JSON file; "" if nobody does
    """
    run, files = read_run(folder), RunFolder(folder)
    if not run.finished:
        raise UsageError(f"{folder} contains no finished run: finish it with 'unseen train --resume --out'")
    card = model_card(run, key=key)
    files.card_signature.unlink(missing_ok=True)
    write_text(files.card_text, card_markdown(card))
    card["files"][files.card_text.name] = sha256_of(files.card_text)
    write_text(files.card, to_json(card))
    return files.card


def model_card(run: Run, *, key: str = "") -> Card:
    """Collect the card from a finished run's records; what a run of an older version lacks is null."""
    result, files = run.result or {}, RunFolder(run.folder)
    card: Card = {
        "format": FORMAT,
        "model": {
            **{name: result.get(name) for name in ("run_id", "model", "method", "task", "seed")},
            "parameters": run.start.get("parameters"),
            "classes": run.data.get("classes") or [],
            "input_shape": run.data.get("input_shape"),
            "trained": run.start.get("time"),
            "rounds": result.get("rounds"),
            "selected_round": result.get("selected_round"),
            "selection": result.get("selection"),
        },
        "data": {
            "name": result.get("data"),
            "sources": _sources(run),
            "held_out": run.held_out,
            "validate_on": result.get("validate_on") or [],
            "notes": run.data.get("notes") or [],
        },
        "metrics": {
            "name": run.metric,
            **{
                part: (result.get("metrics") or {}).get(part)
                for part in ("target", "in_domain", "source_validation", "worst_domain", "worst_group")
            },
            "held_out_domains": _held_out_scores(run),
        },
        "calibration": result.get("calibration"),
        "coverage": _coverage(run),
        "left": result.get("left") or [],
        "protection": result.get("protection"),
        "audit": _audit(files.audit, str(result.get("run_id"))),
        "energy": _energy(files.energy, engine=str(run.config.get("engine", "local"))),
        "versions": {
            "trained_with": {"unseen": run.start.get("version")},
            "card_written_with": _versions(),
        },
        "files": {
            path.relative_to(run.folder).as_posix(): sha256_of(path)
            for path in (
                files.config,
                files.records,
                files.result,
                files.calibration,
                files.model,
                files.audit,
            )
            if path.is_file()
        },
        "signature": {"file": files.card_signature.name, "key": key} if key else None,
    }
    return {**card, "limits": find_limits(run, card)}


def _sources(run: Run) -> dict[str, int | None]:
    """Return the samples of every domain that was trained on; None where they were not counted."""
    outside = {*run.held_out, *((run.result or {}).get("validate_on") or [])}
    chosen = [str(name) for name in run.config.get("sources") or run.data.get("domains") or []]
    counts = run.data.get("class_counts") or {}
    return {
        name: sum(counts[name].values()) if isinstance(counts.get(name), dict) else _samples_of(run, name)
        for name in chosen
        if name not in outside
    }


def _samples_of(run: Run, domain: str) -> int | None:
    """Sum the samples of a domain's clients; None where clients were not listed or share domains."""
    clients = run.start.get("clients") or []
    listed = len(clients) == run.start.get("client_count")
    if not listed or any(len(each["domains"]) > 1 for each in clients):
        return None
    own = [each for each in clients if list(each["domains"]) == [domain]]
    return sum(each[split] for each in own for split in ("train", "validation", "test")) or None


def _held_out_scores(run: Run) -> dict[str, dict[str, Any]]:
    return {
        score["domain"]: {"samples": score.get("count"), **score["metrics"]}
        for score in run.final.get("scores") or []
        if score.get("split") == "target"
    }


def _coverage(run: Run) -> dict[str, Any] | None:
    """Return the promise of the default sets, and what they cover on each domain that was not trained on."""
    default = ((run.final.get("calibration") or {}).get("conformal") or {}).get("default") or {}
    if not default:
        return None
    promise, domains = f"{default['promise']:g}", {}
    for score in run.final.get("scores") or []:
        found = ((score.get("conformal") or {}).get(default["score"]) or {}).get(promise) or {}
        if score.get("split") == "target" and default["rule"] in found:
            domains[score["domain"]] = found[default["rule"]]
    return {**default, "held_out_domains": domains} if domains else None


def _audit(file: Path, run_id: str) -> dict[str, Any] | None:
    """Read what an audit in the run's folder found; None without one of this very run."""
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        own = found["run_id"] == run_id
        kept = {"finding": found["finding"], "membership": found["membership"]["finding"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnseenError(
            f"{file} is no audit of this version ({error}): run 'unseen audit' again"
        ) from error
    return kept if own else None


def _energy(file: Path, *, engine: str) -> dict[str, Any] | None:
    found = sum_energy(read_sessions(file))
    if found is None:
        return None
    return {
        **found._asdict(),
        "kwh": found.joules / JOULES_PER_KWH,
        "watts_per_core": WATTS,
        "covers": "the coordinator's process; sites are not included"
        if engine == "flower"
        else "this machine",
    }


def _versions() -> dict[str, str]:
    found = {"unseen": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_card(folder: Path) -> Card:
    """Read the card of a run; refuse anything else."""
    file = RunFolder(folder).card
    if not file.is_file():
        raise UsageError(f"{folder} has no {file.name}: 'unseen card {folder}' writes it")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT or not isinstance(found["files"], dict):
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnseenError(f"{file} is damaged or no model card of this version ({error})") from error
    return dict(found)


def changed_files(folder: Path, card: Card) -> list[str]:
    """Name the files of a run that are missing, or differ from the sums in its card."""
    return [
        name
        for name, expected in card["files"].items()
        if not (folder / name).is_file() or sha256_of(folder / name) != expected
    ]
