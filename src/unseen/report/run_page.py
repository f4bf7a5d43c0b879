"""The page of one run, finished or not; each section is a function of the run that returns its data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from unseen.evaluation.selection import SELECTION_RULES, LastRound, Oracle, SourceValidation, select
from unseen.fileio import write_text
from unseen.privacy import sum_bytes_by_sender
from unseen.report.calibration_report import (
    calibration_note,
    calibration_table,
    coverage_table,
    detail_table,
)
from unseen.report.figures import FIGURES, draw_figures
from unseen.report.formatting import (
    SPACE,
    format_bytes,
    format_count,
    format_value,
    is_number,
    join_names,
)
from unseen.report.headline import headline, latest_scores, plain_headline, tiles
from unseen.report.page import DataTable, ImageCard, place_figures, render_page
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run
from unseen.tasks import metric_label

SPLIT_NAMES = {"target": "held out", "validation-domain": "kept to choose the round"}
ORACLE_NOTE = (
    "Oracle means that the round was chosen with the labels of the held-out domain, which are not "
    "available in practice. It is shown only to compare with papers that report it."
)
MOST_CLIENTS = 1000
MOST_EXAMPLES = 24
MOST_IMAGE_CHARACTERS = 600_000
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_SEPARATE_FIELDS = (
    *("data", "settings", "data_settings", "schedule_settings", "average_settings"),
    *("aggregate_settings", "protect_settings"),
)


def result_table(run: Run) -> DataTable | None:
    """List all selection rules, the honest one first, then the scores on the sources' own data."""
    metrics = (run.result or {}).get("metrics") or {}
    used = str((run.result or {}).get("selection", SourceValidation.name))
    held = "held-out domain" if len(run.held_out) == 1 else "held-out domains"
    same = _chosen_by(used) if not run.held_out else "the kept round"
    lines: list[tuple[str, str, Any]] = []
    if run.held_out:
        honest = metrics.get("target") if used == SourceValidation.name else _by_source_validation(run)
        values = {
            SourceValidation.name: honest,
            LastRound.name: metrics.get("target_last"),
            Oracle.name: metrics.get("target_oracle"),
        }
        values |= {used: metrics.get("target")}
        lines += [(held, _chosen_by(rule), found) for rule, found in values.items()]
        worst = metrics.get("worst_domain")
        if isinstance(worst, dict):
            lines.append((f"worst domain of all: {join_names([worst.get('domain', '')])}", same, worst))
        worst = metrics.get("worst_group")
        if isinstance(worst, dict):
            lines.append((f"worst group of the {held}: {join_names([worst.get('group', '')])}", same, worst))
    lines.append(("validation domains", same, metrics.get("validation_domains")))
    lines.append(("sources: validation data", same, metrics.get("source_validation")))
    lines.append(("sources: test data (in-domain)", same, metrics.get("in_domain")))
    kept = [(place, rule, values) for place, rule, values in lines if isinstance(values, dict) and values]
    if not kept:
        return None
    names = _metric_names([values for _, _, values in kept], first=run.metric)
    rows = [[place, rule, *(format_value(values.get(n), n) for n in names)] for place, rule, values in kept]
    headers = ["measured on", "round chosen by", *(metric_label(n) for n in names)]
    return DataTable(headers, rows, text_columns=2, lead=True)


def domain_table(run: Run) -> DataTable:
    """List the scores of each domain and split, the held-out ones first."""
    scores = sorted(latest_scores(run), key=lambda score: score.get("split") != "target")
    names = _metric_names([score.get("metrics") or {} for score in scores], first=run.metric)
    rows = [
        [
            score.get("domain", ""),
            SPLIT_NAMES.get(score.get("split", ""), score.get("split", "")),
            format_count(score.get("count")),
            *(format_value((score.get("metrics") or {}).get(n), n) for n in names),
        ]
        for score in scores
    ]
    headers = ["domain", "data", "samples", *(metric_label(n) for n in names)]
    return DataTable(headers, rows, text_columns=2, tall=len(rows) > 20)


class ClientList(NamedTuple):
    """The clients; `cut` is a note if only the first ones are listed."""

    table: DataTable
    cut: str


def client_list(run: Run) -> ClientList:
    """List the clients with their domains and numbers of samples."""
    clients = run.start.get("clients") or []
    rows = [
        [client.get("name", ""), ", ".join(map(str, client.get("domains") or []))]
        + [format_count(client.get(split)) for split in ("train", "validation", "test")]
        for client in clients[:MOST_CLIENTS]
    ]
    cut = f"The first {MOST_CLIENTS} of {len(clients)} clients." if len(clients) > MOST_CLIENTS else ""
    headers = ["client", "domains", "training", "validation", "test"]
    return ClientList(DataTable(headers, rows, text_columns=2, tall=len(rows) > 12), cut)


def notes(run: Run) -> list[str]:
    """Collect the loader's notes on the data, interruptions, and an early end."""
    found = [str(note) for note in run.data.get("notes") or []]
    found += [f"Resumed at round {r.get('round')} ({r.get('time', '')})." for r in run.events("resume")]
    if stop := run.stopped:
        found.append(
            f"Stopped after round {stop.get('round')} of {stop.get('rounds')}: {stop.get('reason')}."
        )
    return found


def fault_table(run: Run) -> DataTable:
    """List clients that failed, when and why."""
    rows = [[r.get("round", ""), r.get("client", ""), r.get("reason", "")] for r in run.events("fault")]
    return DataTable(["round", "client", "reason"], rows, text_columns=3, tall=len(rows) > 12)


def configuration_table(run: Run) -> DataTable:
    """List the whole configuration, one row per value."""
    return DataTable(["setting", "value"], [_code(row) for row in _flatten(run.config)], text_columns=2)


def train_command(config: dict[str, Any]) -> list[str]:
    """Build the shell command that repeats a run, in pieces of one option with its value.

    Options that have their default value, or only say where a run executes, are left out; empty if the
    configuration names no data.
    """
    from unseen.config import RunConfig
    from unseen.run_identity import WHERE

    if not config.get("data"):
        return []
    pieces = [["unseen", "train", str(config["data"])]]
    for field in fields(RunConfig):
        value = config.get(field.name)
        usual = None if field.default is MISSING else field.default
        if field.name in (*_SEPARATE_FIELDS, *WHERE) or value is None or value == usual:
            continue
        declared = field.metadata["option"]
        flag = declared.flag or "--" + (declared.spelling or field.name).replace("_", "-")
        if isinstance(value, bool):
            pieces.append([flag])
        else:
            pieces += [[flag, str(each)] for each in (value if isinstance(value, list) else [value])]
    tables = {
        "--set": "settings",
        "--set-data": "data_settings",
        "--set-schedule": "schedule_settings",
        "--set-average": "average_settings",
        "--aggregate-set": "aggregate_settings",
        "--protect-set": "protect_settings",
    }
    for flag, name in tables.items():
        pieces += [[flag, f"{key}={_option_text(value)}"] for key, value in (config.get(name) or {}).items()]
    return [shlex.join(piece) for piece in pieces]


def example_cards(run: Run) -> dict[str, list[ImageCard]]:
    """Group the recorded examples, the wrong answers first, as many as fit on the page."""
    named = len(run.held_out) > 1
    groups: dict[str, list[ImageCard]] = {"Wrong answers": [], "Right answers": []}
    for example in _examples_that_fit(run.final.get("examples") or []):
        card = _example_card(example, with_domain=named)
        groups["Right answers" if card.right else "Wrong answers"].append(card)
    return {title: cards for title, cards in groups.items() if cards}


class Disclosure(NamedTuple):
    """What left the clients: a table by kind, or only the listed kinds in runs of older versions."""

    statement: str
    protection: str
    kinds: DataTable | None
    senders: DataTable | None
    sender_count: int
    more_senders: int
    listed: list[str]


def disclosure(run: Run) -> Disclosure | None:
    """Collect what left the clients: kinds, sizes, senders, and how it was protected."""
    result = run.result or {}
    lines = result.get("left") or []
    listed = list(result.get("privacy") or [])
    if not lines:
        return Disclosure("", "", None, None, 0, 0, listed) if listed else None
    protection = result.get("protection") or {}
    by_sender = sum_bytes_by_sender(run.records)
    senders = _sender_table(by_sender) if by_sender else None
    return Disclosure(
        statement=protection.get("statement", ""),
        protection=", ".join(f"{k} {v}" for k, v in protection.items() if k not in ("name", "statement")),
        kinds=_kind_table(lines),
        senders=senders,
        sender_count=len(by_sender),
        more_senders=len(by_sender) - len(senders.rows) if senders else 0,
        listed=listed,
    )


def _kind_table(lines: list[dict[str, Any]]) -> DataTable:
    rows = [
        [
            line.get("kind", ""),
            line.get("protected", ""),
            format_count(line.get("senders")),
            format_count(line.get("messages")),
            format_bytes(line["bytes"] / line["messages"]) if line.get("messages") else "",
            format_bytes(line.get("bytes")),
        ]
        for line in lines
    ]
    headers = ["what", "how it was protected", "senders", "messages", "size of one", "in all"]
    return DataTable(headers, rows, text_columns=2)


def _sender_table(by_sender: Mapping[str, Mapping[str, int]]) -> DataTable:
    rows = [
        [
            sender,
            format_bytes(sum(kinds.values())),
            "; ".join(f"{kind} {format_bytes(part)}" for kind, part in kinds.items()),
        ]
        for sender, kinds in list(by_sender.items())[:MOST_CLIENTS]
    ]
    headers = ["client or domain", "in all", "of which"]
    return DataTable(headers, rows, text_columns=3, tall=len(rows) > 12)


def _examples_that_fit(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    room = MOST_IMAGE_CHARACTERS
    for example in examples:
        image = str(example.get("png") or "")
        if _BASE64.fullmatch(image) and len(image) <= room and len(kept) < MOST_EXAMPLES:
            kept.append(example)
            room -= len(image)
    return kept


def _example_card(example: dict[str, Any], *, with_domain: bool) -> ImageCard:
    from markupsafe import Markup

    truth, predicted = example.get("truth"), example.get("predicted")
    right = bool(truth == predicted)
    probability = example.get("probability")
    sure = f"{100 * probability:.0f}{SPACE}% sure" if isinstance(probability, int | float) else ""
    domain = str(example.get("domain", "")) if with_domain else ""
    description = f"True class {truth}, predicted {predicted}"
    return ImageCard(
        png=str(example["png"]),
        alt=description,
        verdict="✓ right" if right else "✗ wrong",
        answer=Markup("<b>{}</b>{}").format(predicted, "" if right else f" – is {truth}"),
        hint=" · ".join(part for part in (sure, domain) if part),
        right=right,
        title=description,
    )


def _chosen_by(rule: str) -> str:
    return SELECTION_RULES[rule].chosen_by if rule in SELECTION_RULES else rule


def _by_source_validation(run: Run) -> dict[str, float] | None:
    """Return the score by source validation in a run that used another rule."""
    record = select(run.evaluations, SourceValidation.name, run.task)
    targets = [score["metrics"] for score in (record or {}).get("scores", []) if score["split"] == "target"]
    means = {}
    for name in targets[0] if targets else ():
        known = [metrics[name] for metrics in targets if is_number(metrics.get(name))]
        if known:
            means[name] = sum(known) / len(known)
    return means or None


def _metric_names(found: list[dict[str, Any]], *, first: str) -> list[str]:
    names = dict.fromkeys(name for metrics in found for name in metrics if name not in ("domain", "group"))
    return sorted(names, key=lambda name: name != first)


def _flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            rows += _flatten(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, json.dumps(value, ensure_ascii=False, default=str)))
    return rows


def _code(cells: tuple[str, ...]) -> list[object]:
    from markupsafe import Markup

    return [Markup("<code>{}</code>").format(cell) for cell in cells]


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, finished or not, and return its path."""
    path = RunFolder(folder).report
    write_text(path, run_page(read_run(folder)))
    return path


def run_page(run: Run) -> str:
    """Render the page of one run."""
    drawn = draw_figures(run)
    figures, charts = place_figures({name: FIGURES[name] for name in drawn}, drawn)
    facts = run.facts
    return render_page(
        "run.html.j2",
        title=plain_headline(run),
        charts=charts,
        headline=headline(run),
        about=[
            facts.get("data"),
            facts.get("model"),
            f"seed {facts['seed']}" if "seed" in facts else "",
            f"weights of clients: {facts['client_weights']}" if "client_weights" in facts else "",
        ],
        finished=run.finished,
        held_out=run.held_out,
        tiles=tiles(run),
        result=result_table(run),
        oracle_note=ORACLE_NOTE,
        figures=figures,
        domains=domain_table(run),
        further=detail_table(run),
        calibration=calibration_table(run),
        coverage=coverage_table(run),
        calibration_note=calibration_note(run),
        examples=example_cards(run),
        disclosure=disclosure(run),
        clients=client_list(run),
        notes=notes(run),
        faults=fault_table(run),
        command=train_command(run.config),
        run_id=facts.get("run_id", ""),
        version=run.start.get("version", ""),
        configuration=configuration_table(run),
    )
