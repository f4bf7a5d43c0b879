"""The page of a judgement, for those who decide about a model: an ethics board, a clinic, an engineer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unseen.report.formatting import (
    NOTHING,
    SPACE,
    format_bytes,
    format_count,
    format_value,
    is_number,
    join_names,
    p_text,
)
from unseen.report.intervals import dot_chart
from unseen.report.page import DataTable, FigurePlace, PanelPlace, Tile, render_page
from unseen.report.vega_bundle import vega_lite
from unseen.tasks import is_fraction, metric_label
from unseen.tasks.detail_metrics import DETAIL_METRICS

Values = Mapping[str, Any]
ACROSS = "auroc_across_sites"
TOGETHER = "all sites"
LIKELY = 0.05
MANY_CLASSES = 12


def label_of(metric: str) -> str:
    """Return a metric's name for people."""
    if metric == ACROSS:
        return "AUROC, sites ranked together"
    return DETAIL_METRICS[metric].label if metric in DETAIL_METRICS else metric_label(metric)


def metric_names(values: Values, among: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """List the metrics of a judgement with their labels; `among` chooses some."""
    known = values["pooled"]["metrics"][0]
    return [(name, label_of(name)) for name in known if among is None or name in among]


def value_text(metric: str, value: object) -> str:
    """Format a metric's value, fractions in percent."""
    if not is_number(value):
        return NOTHING
    return f"{100 * value:.1f}{SPACE}%" if _is_fraction(metric) else format_value(value)


def _is_fraction(metric: str) -> bool:
    if metric == ACROSS:
        return True
    return DETAIL_METRICS[metric].is_fraction if metric in DETAIL_METRICS else is_fraction(metric)


def score_text(metric: str, score: Mapping[str, Any] | None) -> str:
    """Format a value with its interval."""
    if not score or not is_number(score["value"]):
        return NOTHING
    text = value_text(metric, score["value"])
    if not is_number(score["low"]) or not is_number(score["high"]):
        return text
    factor, digits = (100, ".1f") if _is_fraction(metric) else (1, ".3g")
    return f"{text} ({format(factor * score['low'], digits)}–{format(factor * score['high'], digits)})"


def explain_test(test: Values, values: Values, where: str = "") -> str:
    """Say in plain words what a test between the two models found."""
    first, second = (model["name"] for model in values["models"])
    if first == second:
        first, second = "the first model", "the second model"
    metric, place = label_of(test["metric"]), f" at {where}" if where else ""
    if not is_number(test["p_value"]):
        return f"{metric}{place}: too little data for a test ({test['test']})."
    found = _difference(test)
    if "only_first" in test:
        found += f": {test['only_second']} samples only {second} has right, {test['only_first']} only {first}"
    if test["p_value"] >= LIKELY:
        verdict = "chance alone could explain it, so no difference is shown (nor excluded)"
    else:
        better = (test["difference"] > 0) == (test["metric"] != "mae")
        verdict = f"chance alone hardly explains it: {second if better else first} is better"
    return f"{metric}{place}: {found}. By {test['test']}, {p_text(test['p_value'], 'p')}: {verdict}."


def _difference(test: Values) -> str:
    fraction = _is_fraction(test["metric"])
    factor, unit = (100, f"{SPACE}points") if fraction else (1, "")
    number, low, high = (factor * test[key] for key in ("difference", "low", "high"))
    digits = "+.1f" if fraction else "+.3g"
    return f"{format(number, digits)}{unit} ({format(low, digits)} to {format(high, digits)})"


def judge_page(values: Values) -> str:
    """Render the page from what judgement.json holds."""
    models, sites = values["models"], values["sites"]
    names = " and ".join(model["name"] for model in models)
    count = "1 site" if len(sites) == 1 else f"{len(sites)} sites"
    charts, figures = _figure(values)
    return render_page(
        "judgement.html.j2",
        title=f"Judgement of {names}",
        charts=charts,
        headline=f"{names}, judged at {count}",
        about=[
            f"data {values['data']}",
            f"{format_count(values['pooled']['samples'])} samples",
            f"on {values['where']}",
            f"made {values['made']}" if values.get("made") else "",
        ],
        tiles=_tiles(values),
        findings=_findings(values),
        figures=figures,
        models=_models(values),
        metrics={
            model["name"] + _twin(models, place): _metrics(values, place)
            for place, model in enumerate(models)
        },
        tests=_tests(values),
        classes=_classes(values),
        groups=_groups(values),
        data=_data(values),
        refused=[f"{site}: {reason}" for site, reason in values["refused"].items()],
        left=_left(values),
        method=_method(values),
    )


def _twin(models: Sequence[Values], place: int) -> str:
    """Tell two models of the same name apart."""
    same = [model["name"] for model in models].count(models[place]["name"]) > 1
    return f" ({('first', 'second')[place]})" if same else ""


def _primary(values: Values) -> str:
    return "accuracy" if values["classes"] else "mae"


def _tiles(values: Values) -> list[Tile]:
    metric, tiles = _primary(values), []
    for place, model in enumerate(values["models"]):
        score, label = values["pooled"]["metrics"][place][metric], label_of(metric)
        named = f"{label}, {model['name']}{_twin(values['models'], place)}"
        text = score_text(metric, score)
        tiles.append(
            Tile(
                named if len(values["models"]) > 1 else f"{label}, {TOGETHER}",
                value_text(metric, score["value"]),
                text[text.find("(") + 1 : -1] + ", with 95 % confidence" if "(" in text else "",
                hero=not place,
            )
        )
    worst = values["worst"][0].get(metric)
    if worst:
        tiles.append(
            Tile("worst site", worst["where"], f"{label_of(metric)} {value_text(metric, worst['value'])}")
        )
    tiles.append(Tile("samples", format_count(values["pooled"]["samples"]), f"{len(values['sites'])} sites"))
    return tiles


def _findings(values: Values) -> list[str]:
    """Say the most important in sentences."""
    metric, found = _primary(values), []
    for place, model in enumerate(values["models"]):
        name = f"{model['name']}{_twin(values['models'], place)}"
        score = score_text(metric, values["pooled"]["metrics"][place][metric])
        text = f"{name}: {label_of(metric)} {score} over all sites"
        worst = values["worst"][place].get(metric)
        if worst and len(values["sites"]) > 1:
            text += f", {value_text(metric, worst['value'])} at the worst, {worst['where']}"
        found.append(text + ".")
        known = [site for site in values["sites"] if site in model["sources"]]
        if known:
            found.append(
                f"{name} was trained on data of {join_names(known)}: its numbers there are partly on "
                "samples it has seen, and too good."
            )
    found += [explain_test(test, values) for test in values["pooled"]["tests"]]
    if values["refused"]:
        found.append(f"Not judged: {join_names(list(values['refused']))}. The reasons are below.")
    return found


def _figure(values: Values) -> tuple[dict[str, Any], list[FigurePlace]]:
    """Draw the primary metric per site, with intervals."""
    metric = "accuracy" if values["classes"] else "rmse"
    models = values["models"]
    series = [f"{model['name']}{_twin(models, place)}" for place, model in enumerate(models)]
    rows = [
        {"name": where, "series": series[place], **{key: score[key] for key in ("value", "low", "high")}}
        for where, found in (*values["sites"].items(), (TOGETHER, values["pooled"]))
        for place, scores in enumerate(found["metrics"])
        if is_number((score := scores[metric])["value"])
    ]
    if not rows:
        return {}, []
    names = [*values["sites"], TOGETHER]
    chart = dot_chart(rows, metric=metric, names=names, series=series)
    title = f"{label_of(metric).capitalize() if metric == 'accuracy' else label_of(metric)} per site"
    place = FigurePlace(title, "Lines are intervals of 95 %.", "full", [PanelPlace("chart-judged", "")])
    return {"chart-judged": vega_lite(chart) | {"description": title}}, [place]


def _models(values: Values) -> DataTable:
    rows = [
        [
            f"{model['name']}{_twin(values['models'], place)}",
            model["kind"],
            model["sha256"],
            ", ".join(model["sources"]) or "it does not say",
        ]
        for place, model in enumerate(values["models"])
    ]
    return DataTable(["model", "kind", "SHA-256 of the file", "trained on"], rows, text_columns=4)


def _metrics(values: Values, place: int) -> DataTable:
    names = metric_names(values)
    where = [(TOGETHER, values["pooled"]), *values["sites"].items()]
    rows = [
        [label, *(score_text(name, found["metrics"][place].get(name)) for _, found in where)]
        for name, label in names
    ]
    return DataTable(["metric", *(site for site, _ in where)], rows)


def _tests(values: Values) -> DataTable | None:
    places = [(TOGETHER, values["pooled"]), *values["sites"].items()]
    rows = [
        [
            label_of(test["metric"]),
            where,
            _difference(test) if is_number(test["p_value"]) else NOTHING,
            test["test"],
            p_text(test["p_value"]),
        ]
        for number in range(len(values["pooled"]["tests"]))
        for where, found in places
        for test in found["tests"][number : number + 1]
    ]
    headers = ["metric", "where", "second model minus first (95 %)", "test", "p"]
    return DataTable(headers, rows, text_columns=2) if rows else None


def _classes(values: Values) -> DataTable | None:
    found = values["pooled"]["class_areas"]
    headers = [
        f"AUROC, {model['name']}{_twin(values['models'], n)}" for n, model in enumerate(values["models"])
    ]
    rows = [[name, *(score_text("auroc", score) for score in scores)] for name, scores in found.items()]
    return (
        DataTable(["class, against all others", *headers], rows, tall=len(rows) > MANY_CLASSES)
        if rows
        else None
    )


def _groups(values: Values) -> list[tuple[str, DataTable, str]]:
    tables = []
    for where, found in ((TOGETHER, values["pooled"]), *values["sites"].items()):
        for groups in found["groups"]:
            names = list(groups["groups"][0]["metrics"][0]) if groups["groups"] else []
            headers = [
                f"{label_of(name)}, {model['name']}{_twin(values['models'], place)}"
                for place, model in enumerate(values["models"])
                for name in names
            ]
            rows = [
                [each["name"], format_count(each["samples"]),
                 *(score_text(name, scores[name]) for scores in each["metrics"] for name in names)]
                for each in groups["groups"]
            ]  # fmt: skip
            hidden = f"{groups['hidden']} samples are in groups too small to be shown, or have no value here."
            table = DataTable(["group", "samples", *headers], rows)
            tables.append((f"{groups['column']}, {where}", table, hidden if groups["hidden"] else ""))
    return tables


def _data(values: Values) -> DataTable:
    classes = values["classes"] if len(values["classes"]) <= MANY_CLASSES else []
    rows = [
        [where, format_count(found["samples"]), *(format_count(found["per_class"][name]) for name in classes),
         found["min_group"]]
        for where, found in (*values["sites"].items(), (TOGETHER, values["pooled"]))
    ]  # fmt: skip
    return DataTable(["site", "samples", *classes, "smallest group counted"], rows)


def _left(values: Values) -> DataTable:
    rows = [
        [each["site"], each["kind"], format_count(each["numbers"]), format_bytes(each["bytes"])]
        for each in values["left"]
    ]
    return DataTable(["site", "what left it", "numbers", "size"], rows, text_columns=2)


def _method(values: Values) -> list[str]:
    """Say how the numbers were made."""
    said = [
        "Nothing was trained. Every site ran the model on its own samples and kept samples, labels and "
        "single predictions; only the numbers listed above left it.",
        "Intervals hold the true value in about 95 of 100 repetitions with other samples from the same sites "
        "(that of the ECE in fewer, at sites with few samples). They say nothing about sites that are not "
        "listed.",
        "Classes and groups with fewer samples than a site's smallest group are left out, and so is the "
        "smallest group if the rest could be computed by subtraction.",
    ]
    if values["classes"]:
        said += [
            "All sites: counts, ECE, Brier score and NLL follow from sums, exactly as if all samples were in "
            "one place. AUROC is the mean of the sites' areas, weighted by their samples (pairs are compared "
            "within a site only); “sites ranked together”, AUPRC and sensitivity come from summed "
            f"histograms, and judgement.json has each one's largest rounding error{_largest_width(values)}.",
            "Of more than two classes AUROC, AUPRC and sensitivity are means over the classes, each against "
            "all others. Probabilities are calibrated as the model says, if it does.",
        ]
    else:
        said.append("All sites: every number follows from sums, exactly as if all samples were in one place.")
    if len(values["models"]) > 1:
        said.append(
            "p is the probability of a difference at least as large if the models were equally good. Small "
            "means: chance hardly explains it. With many tests some are small by chance: p-values of single "
            "sites are not corrected for their number."
        )
    return said


def _largest_width(values: Values) -> str:
    scores = [scores.values() for scores in values["pooled"]["metrics"]]
    widths: list[float] = [score["width"] for each in scores for score in each if score["width"]]
    largest = max(widths, default=0.0)
    return f" (at most {100 * largest:.1f} points here)" if largest else ""
