"""The top of a run's page: the result in one sentence, and the key numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.evaluation.selection import SELECTION_RULES, Oracle
from unseen.report.formatting import (
    NOTHING,
    format_bytes,
    format_count,
    format_duration,
    format_value,
    join_names,
    method_name,
)
from unseen.report.page import Tile
from unseen.runs.reader import Run
from unseen.tasks import metric_label

if TYPE_CHECKING:
    from markupsafe import Markup


def plain_headline(run: Run) -> str:
    """Return the headline as bare text, for the window title."""
    return "".join(text for text, _ in _sentence(run))


def headline(run: Run) -> Markup:
    """Return the headline with its number highlighted."""
    from markupsafe import Markup, escape

    parts = (Markup("<strong>{}</strong>").format(t) if strong else escape(t) for t, strong in _sentence(run))
    return Markup("").join(parts)


def latest_scores(run: Run) -> list[dict[str, Any]]:
    """Return scores per domain of the kept model, or of the latest evaluation while there is none."""
    found = run.final.get("scores") or (run.evaluations[-1].get("scores") if run.evaluations else [])
    return list(found or [])


def target_value(run: Run) -> object:
    """Return the primary metric on the held-out domains: of the result, else of the latest evaluation."""
    if run.result is not None:
        return _metrics(run, "target").get(run.metric)
    targets = [score for score in latest_scores(run) if score.get("split") == "target"]
    values = [score["metrics"].get(run.metric) for score in targets]
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None


def tiles(run: Run) -> list[Tile]:
    """Return the key numbers."""
    name, facts = metric_label(run.metric), run.facts
    where = join_names(run.held_out, limit=2)
    made: list[Tile] = []
    if run.held_out:
        rule = _rule_hint(str(facts.get("selection"))) if run.finished else "latest evaluation"
        error = _metrics(run, "target").get("rmse")
        hint = "; ".join(filter(None, [f"RMSE {format_value(error)}" if error is not None else "", rule]))
        value = format_value(target_value(run), run.metric)
        made.append(Tile(f"{name} on {where}, held out", value, hint, hero=True))
    for key, label, hint in (
        ("target_oracle", Oracle.label, "best round on the held-out data itself"),
        ("source_validation", "source validation", "the sources’ own validation data"),
        ("in_domain", "in-domain", "the sources’ own test data"),
    ):
        value = format_value(_metrics(run, key).get(run.metric), run.metric)
        if value != NOTHING:
            made.append(Tile(label, value, hint))
    made.append(_rounds_tile(run))
    seconds = facts.get("seconds") or sum(r.get("seconds") or 0 for r in run.rounds + run.evaluations)
    trained = f"{format_count(run.start.get('parameters'))} trained parameters"
    made.append(Tile("time", format_duration(seconds), trained))
    up = facts.get("bytes_up", sum(r.get("bytes_up") or 0 for r in run.rounds))
    down = facts.get("bytes_down", sum(r.get("bytes_down") or 0 for r in run.rounds))
    made.append(Tile("sent by clients", format_bytes(up), f"and {format_bytes(down)} sent to them"))
    return made


def _rounds_tile(run: Run) -> Tile:
    planned = run.facts.get("rounds")
    done = run.rounds[-1]["round"] if run.rounds else 0
    if not run.finished:
        return Tile("rounds so far", done, f"of {planned}" if planned else "unfinished")
    kept = "" if run.selected_round is None else f"the model of round {run.selected_round} was kept"
    if run.stopped:
        return Tile("rounds", done, f"stopped early, of {planned}; {kept}")
    return Tile("rounds", planned or done, kept)


def _metrics(run: Run, key: str) -> dict[str, Any]:
    return dict(((run.result or {}).get("metrics") or {}).get(key) or {})


def _sentence(run: Run) -> list[tuple[str, bool]]:
    method = method_name(run.facts.get("method") or "The run")
    several = len(run.held_out) > 1
    part = "domains not used in training" if several else "a domain not used in training"
    done = run.rounds[-1]["round"] if run.rounds else 0
    if run.held_out:
        value, place = target_value(run), f" on {join_names(run.held_out)}, {part}"
    else:
        value = (_metrics(run, "in_domain") or _metrics(run, "source_validation")).get(run.metric)
        place = " on the domains it was trained on; none was held out"
    if value is None:
        state = "finished without a score" if run.finished else f"has no score yet, after {done} rounds"
        return [(f"{method} {state}", False), ("" if run.finished else " (unfinished)", False)]
    shown = format_value(value, run.metric)
    if run.metric != "accuracy":
        shown = f"{metric_label(run.metric)} {shown}"
    verb = f"{method} reached " if run.finished else f"{method}, unfinished after {done} rounds, is at "
    return [(verb, False), (shown, True), (place, False)]


def _rule_hint(name: str) -> str:
    return SELECTION_RULES[name].hint if name in SELECTION_RULES else ""
