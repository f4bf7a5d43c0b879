"""Tables as text: the same cells for the terminal, Markdown, LaTeX and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unseen.bench.bench_tables import ResultsTable, TableCell, TableRow
from unseen.bench.comparisons import PairwiseComparison, compare_all_pairs, p_number
from unseen.bench.results import JobResult
from unseen.bench.statistics import ASSUMPTION, LEVEL, Estimate, expected_accuracy, mean_and_error
from unseen.bench.study import Study, display_name
from unseen.evaluation.selection import SELECTION_RULES, rule_label
from unseen.report.formatting import NOTHING, format_bytes, format_clock
from unseen.tasks import is_fraction, metric_label

MARKS = {"better": "*", "worse": "†", "": ""}
PUBLISHED = " (published)"


@dataclass(frozen=True)
class Text:
    """The text of a cell, and whether it is bold."""

    text: str
    bold: bool = False


Line = tuple[Text, ...]


@dataclass(frozen=True)
class Sheet:
    """Headers and groups of lines, each with a heading ("" for none); columns but the first are numbers."""

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]
    note: str = ""


def number_text(value: float | None, metric: str, decimals: int | None = None) -> str:
    """Format a number whose unit is in the title: percent with one decimal, else three decimals."""
    if value is None:
        return NOTHING
    if is_fraction(metric):
        return f"{100 * value:.{1 if decimals is None else decimals}f}"
    return f"{value:.{3 if decimals is None else decimals}f}"


def estimate_text(
    estimate: Estimate | None, metric: str, *, planned: int = 0, decimals: int | None = None
) -> str:
    """Format mean ± standard error, and the number of runs in brackets where some are missing."""
    if estimate is None:
        return NOTHING
    error = f" ± {number_text(estimate.error, metric, decimals)}" if estimate.error is not None else ""
    runs = f" ({estimate.count})" if estimate.count < planned else ""
    return number_text(estimate.mean, metric, decimals) + error + runs


def unit_text(metric: str) -> str:
    """Format the metric and its unit, for titles."""
    return f"{metric_label(metric)} in %" if is_fraction(metric) else metric_label(metric)


def rule_sentence(rule: str) -> str:
    """Explain a selection rule."""
    return f"{rule_label(rule).capitalize()}: {SELECTION_RULES[rule].summary}."


def table_sheet(table: ResultsTable) -> Sheet:
    """Format the table of one selection rule; with a column of runs if some are missing."""
    headers = ["method", *table.columns, "mean", *([] if table.complete else ["runs"])]
    groups = [("", tuple(_line(row, table) for row in table.rows))]
    found = table.published
    if found is not None and found.rows:
        chosen = f"; round chosen by: {published_rule(found.selection)}" if found.selection else ""
        groups.append(
            (f"published in {found.source}{chosen}", tuple(_published(row, table) for row in found.rows))
        )
    model = f", {table.model}" if table.model else ""
    title = f"Held-out {unit_text(table.metric)}{model}, by {rule_label(table.rule)}"
    return Sheet(title, tuple(headers), tuple(groups), _note(table))


def rules_sheet(tables: Sequence[ResultsTable]) -> Sheet:
    """Format the mean over the held-out domains under all selection rules, side by side."""
    first = tables[0]
    lines = tuple(
        (Text(row.name), *(_cell(table.rows[place].mean, table, planned=table.planned) for table in tables))
        for place, row in enumerate(first.rows)
    )
    model = f", {first.model}" if first.model else ""
    note = " ".join(rule_sentence(table.rule) for table in tables)
    return Sheet(
        f"Mean held-out {unit_text(first.metric)}{model}, by every selection rule",
        ("method", *(rule_label(table.rule) for table in tables)),
        (("", lines),),
        note,
    )


def _line(row: TableRow, table: ResultsTable) -> Line:
    cells = [_cell(cell, table, planned=table.seeds) for cell in row.cells]
    runs = [] if table.complete else [Text(f"{row.runs} of {table.planned}")]
    return (Text(row.name), *cells, _cell(row.mean, table, planned=0), *runs)


def _published(row: TableRow, table: ResultsTable) -> Line:
    cells = [
        Text(estimate_text(cell.estimate, table.metric, decimals=row.decimals))
        for cell in (*row.cells, row.mean)
    ]
    return (Text(row.name + PUBLISHED), *cells, *([] if table.complete else [Text(NOTHING)]))


def _cell(cell: TableCell, table: ResultsTable, *, planned: int) -> Text:
    mark = MARKS[cell.verdict] if cell.estimate else ""
    return Text(estimate_text(cell.estimate, table.metric, planned=planned) + mark, bold=cell.best)


def _note(table: ResultsTable) -> str:
    parts = [rule_sentence(table.rule)]
    if table.seeds > 1:
        parts.append(f"Mean ± standard error over {table.seeds} seeds; bold: best of ours in its column.")
    elif len(table.rows) > 1:
        parts.append("One seed, so there is no error; bold: best of ours in its column.")
    if table.baseline and any(row.mean.verdict for row in table.rows):
        name = display_name(table.baseline)
        parts.append(
            f"{MARKS['better']} significantly better, {MARKS['worse']} significantly worse than {name} "
            f"(paired t-test over domains and seeds, Holm, p < {LEVEL:g})."
        )
    if not table.complete:
        parts.append(
            "Runs are missing: a number in brackets says how many a cell has, and only cells with the most "
            "of their column can be bold."
        )
    if table.published and table.published.note:
        parts.append(table.published.note)
    return " ".join(parts)


Column = tuple[str, Callable[[Sequence[JobResult]], str]]


def expectation_sheet(study: Study, rule: str) -> Sheet:
    """Format the expectation for a new site: the mean, its interval, and the interval of a single site."""
    metric, lines = study.metric, list[Line]()
    for label in study.labels:
        found = expected_accuracy(study.by_domain(label, rule), metric=metric)
        if found is not None:
            spans = ((found.low, found.high), (found.site_low, found.site_high))
            intervals = [Text(_span(low, high, metric)) for low, high in spans]
            mean, count = Text(number_text(found.mean, metric)), Text(str(found.domains))
            lines.append((Text(display_name(label)), mean, *intervals, count))
    headers = ("method", "expected", "mean over such sites", "a single new site", "domains")
    note = f"Intervals of 95 %. {ASSUMPTION}"
    title = f"Expected {unit_text(metric)} on a new site{study.in_title}"
    return Sheet(title, headers, (("", tuple(lines)),), note)


def cost_sheet(study: Study) -> Sheet:
    """Format in-domain metrics and costs, one line per method; columns without any value are left out."""
    metric = study.metric
    columns: list[Column] = [
        ("in-domain", lambda runs: _estimate([run.in_domain for run in runs], metric)),
        ("worst group", lambda runs: _estimate([run.worst_group for run in runs], metric)),
        ("lowest run", lambda runs: number_text(_lowest(runs, study), metric)),
        ("time per run", lambda runs: format_clock(_mean([run.seconds for run in runs]))),
        ("sent by clients", lambda runs: format_bytes(_mean([run.bytes_up for run in runs]))),
        ("sent to clients", lambda runs: format_bytes(_mean([run.bytes_down for run in runs]))),
    ]
    lines: list[list[str]] = []
    for label in study.labels:
        runs = [result for result in study.results if result.label == label]
        lines.append(
            [display_name(label), *(format_runs(runs) if runs else NOTHING for _, format_runs in columns)]
        )
    kept = [0, *(at for at in range(1, len(columns) + 1) if any(line[at] != NOTHING for line in lines))]
    headers = ("method", *(name for name, _ in columns))
    shown: tuple[Line, ...] = tuple(tuple(Text(line[at]) for at in kept) for line in lines)
    note = (
        f"Means over the finished runs; {unit_text(metric)} where no unit is given. In-domain: test data of "
        "the sources. Lowest run: the held-out domain and seed that went worst. Times depend on the machine."
    )
    title = f"In-domain performance and cost{study.in_title}"
    return Sheet(title, tuple(headers[at] for at in kept), (("", shown),), note)


def _span(low: float | None, high: float | None, metric: str) -> str:
    return NOTHING if low is None else f"{number_text(low, metric)} to {number_text(high, metric)}"


def _lowest(runs: Sequence[JobResult], study: Study) -> float | None:
    rule = study.rules[0] if study.rules else ""
    return min((run.accuracy[rule] for run in runs if rule in run.accuracy), default=None)


def _estimate(values: Sequence[float | None], metric: str) -> str:
    return estimate_text(mean_and_error(value for value in values if value is not None), metric)


def _mean(values: Sequence[float]) -> float | None:
    found = mean_and_error(values)
    return found.mean if found else None


def statistics_sheet(study: Study, rule: str, found: Sequence[PairwiseComparison]) -> Sheet:
    """Format each method against the baseline: difference, both tests, correction and effect size."""
    first = found[0]
    fraction = is_fraction(first.metric)
    lines = tuple(
        (
            Text(display_name(each.ours)),
            Text(_difference(each), bold=each.significant),
            Text(_p(each.runs.t_p)),
            Text(_p(each.corrected_p), bold=each.significant),
            Text(_p(each.runs.wilcoxon_p)),
            Text(NOTHING if each.runs.effect_size is None else f"{each.runs.effect_size:+.2f}"),
            Text(
                str(each.runs.pairs)
                + (f" of {each.runs.pairs + each.runs.missing}" if each.runs.missing else "")
            ),
            Text(_p(each.domains.t_p)),
        )
        for each in found
    )
    headers = (
        "method",
        "points (95 % interval)" if fraction else "difference (95 % interval)",
        "p, t-test",
        "p, Holm",
        "p, Wilcoxon",
        "effect size",
        "pairs",
        "p over domains",
    )
    note = (
        "A pair is two runs with the same held-out domain and seed. Holm corrects the t-test for all "
        "comparisons of this table. The effect size is Cohen's d of the pairs. The last column averages "
        "seeds first and takes every domain as one observation: would it be seen on other domains too?"
    )
    title = f"Against {display_name(first.baseline)}{study.in_title}, by {rule_label(rule)}"
    return Sheet(title, headers, (("", lines),), note)


def matrix_sheet(study: Study, rule: str) -> Sheet:
    """Format p-values of every pair of methods, bold where significant after Holm's correction."""
    found = {(each.ours, each.baseline): each for each in compare_all_pairs(study, rule)}
    lines = []
    for ours in study.labels:
        cells = [Text(display_name(ours))]
        for other in study.labels:
            each = found.get((ours, other)) or found.get((other, ours))
            if each is None:
                cells.append(Text(""))
                continue
            sign = "" if each.runs.same or not each.runs.pairs else _sign(each, ours)
            cells.append(Text(f"{sign}{_p(each.runs.t_p)}", bold=each.significant))
        lines.append(tuple(cells))
    note = (
        "p-values of the paired t-test, not corrected; + means that the method of the row is ahead, − that "
        f"it is behind. Bold: p < {LEVEL:g} also after Holm's correction for all pairs of methods."
    )
    headers = ("method", *(display_name(label) for label in study.labels))
    return Sheet("Method against method", headers, (("", tuple(lines)),), note)


def _difference(each: PairwiseComparison) -> str:
    runs, scale = each.runs, 100 if is_fraction(each.metric) else 1
    digits = 1 if scale == 100 else 3
    if not runs.pairs:
        return NOTHING
    shown = f"{scale * runs.difference:+.{digits}f}"
    if runs.low is None or runs.high is None:
        return shown
    return f"{shown} ({scale * runs.low:+.{digits}f} to {scale * runs.high:+.{digits}f})"


def _sign(each: PairwiseComparison, ours: str) -> str:
    ahead = (each.runs.difference > 0) == (each.ours == ours)
    return "" if each.runs.difference == 0 else "+ " if ahead else "− "


def _p(p: float | None) -> str:
    return NOTHING if p is None else p_number(p)


def published_rule(selection: str) -> str:
    """Return how a paper chose its round: a rule's label, or what the paper says."""
    return "nothing, or one round" if selection == "none" else rule_label(selection)
