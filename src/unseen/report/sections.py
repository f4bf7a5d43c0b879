"""The parts of a run's page below the headline: each a function of the run, empty if it has nothing."""

from __future__ import annotations

import json
from typing import Any

from unseen.evaluation.selection import SELECTION_RULES, LastRound, Oracle, SourceValidation, select
from unseen.report.command import train_command
from unseen.report.formatting import format_count, format_value, is_number, join_names
from unseen.report.headline import scores_now
from unseen.report.markup import Markup, esc, join, section, table, tag
from unseen.runs.reader import Run
from unseen.tasks import metric_label

SPLIT_NAMES = {"target": "held out", "validation-domain": "kept to choose the round"}
ORACLE = (
    "Oracle means that the round was picked by looking at the labels of the held-out domain, which nobody "
    "has in practice. It is shown only to compare with papers that report it."
)
CLIENTS_SHOWN = 1000


def result_section(run: Run) -> Markup:
    """All selection rules, the honest one first, then what the sources' own data says."""
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
    names = _metric_names([values for _, _, values in kept], first=run.metric)
    if not kept:
        return Markup("")
    rows = [[place, rule, *(format_value(values.get(n), n) for n in names)] for place, rule, values in kept]
    headers = ["measured on", "round chosen by", *(metric_label(n) for n in names)]
    note = tag("p", ORACLE, class_="note") if run.held_out else ""
    return section("Result", table(headers, rows, text_columns=2, lead=True), note)


def domains_section(run: Run) -> Markup:
    """Scores of each domain and split, the held-out ones first."""
    scores = sorted(scores_now(run), key=lambda score: score.get("split") != "target")
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
    return (
        section("Every domain", table(headers, rows, text_columns=2, tall=len(rows) > 20))
        if rows
        else Markup("")
    )


def clients_section(run: Run) -> Markup:
    """Who took part, and with how much data."""
    clients = run.start.get("clients") or []
    if not clients:
        return Markup("")
    rows = [
        [client.get("name", ""), ", ".join(map(str, client.get("domains") or []))]
        + [format_count(client.get(split)) for split in ("train", "validation", "test")]
        for client in clients[:CLIENTS_SHOWN]
    ]
    cut = f"The first {CLIENTS_SHOWN} of {len(clients)} clients." if len(clients) > CLIENTS_SHOWN else ""
    headers = ["client", "domains", "training", "validation", "test"]
    shown = table(headers, rows, text_columns=2, tall=len(rows) > 12)
    return section("Clients", shown, tag("p", cut, class_="note") if cut else "")


def notes_section(run: Run) -> Markup:
    """What the loader did to the data, and interruptions."""
    notes = [str(note) for note in run.data.get("notes") or []]
    notes += [f"Resumed at round {r.get('round')} ({r.get('time', '')})." for r in run.events("resume")]
    return section("Notes", tag("ul", *(tag("li", note) for note in notes))) if notes else Markup("")


def faults_section(run: Run) -> Markup:
    """Clients that failed, when and why."""
    rows = [[r.get("round", ""), r.get("client", ""), r.get("reason", "")] for r in run.events("fault")]
    if not rows:
        return Markup("")
    return section("Faults", table(["round", "client", "reason"], rows, text_columns=3, tall=len(rows) > 12))


def reproduce_section(run: Run) -> Markup:
    """The command that repeats the run, its identity and its whole configuration."""
    command = train_command(run.config)
    run_id, version = run.facts.get("run_id", ""), run.start.get("version", "")
    identity = join(
        [
            "Run ",
            tag("code", run_id),
            f", Unseen {version}" if version else "",
            ". The run id is a hash of the configuration below.",
        ]
    )
    rows = [[tag("code", key), tag("code", value)] for key, value in _flat(run.config)]
    details = tag(
        "details",
        tag("summary", f"Full configuration ({len(rows)} values)"),
        table(["setting", "value"], rows, text_columns=2),
    )
    return section(
        "Run it again",
        tag("pre", tag("code", *(join([tag("span", piece), " "]) for piece in command)), tabindex="0")
        if command
        else "",
        tag("p", identity) if run_id else "",
        details if rows else "",
    )


def unfinished_notice(run: Run) -> Markup:
    """A banner on the page of a run that has not ended."""
    if run.finished:
        return Markup("")
    text = esc("This run is unfinished: the page shows what has been recorded so far. ")
    hint = join(["Carry it on with ", tag("code", "--resume"), " and make the report again."])
    return tag("p", tag("strong", "Unfinished. "), text, hint, class_="notice", role="status")


def _chosen_by(rule: str) -> str:
    return SELECTION_RULES[rule].chosen_by if rule in SELECTION_RULES else rule


def _by_source_validation(run: Run) -> dict[str, float] | None:
    """What the honest rule would have given in a run that used another one."""
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


def _flat(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, json.dumps(value, ensure_ascii=False, default=str)))
    return rows
