"""Tables of a bench as numbers: methods x held-out domains, one table per selection rule and model.

Published rows are kept apart: they are never ranked, tested or averaged together with ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unseen.bench.comparisons import compare_with_baseline
from unseen.bench.statistics import Estimate, mean_and_error
from unseen.bench.study import Study, display_name

CLOSE = 1e-12


@dataclass(frozen=True)
class TableCell:
    """A value of a table, whether it is the best of its column, and its verdict against the baseline."""

    estimate: Estimate | None = None
    best: bool = False
    verdict: str = ""


@dataclass(frozen=True)
class TableRow:
    """One method: a cell per column, their mean, and the number of runs.

    decimals  decimal places that a published row is printed with
    weights   weights of the clients; empty where the grid does not name them
    """

    label: str
    name: str
    cells: tuple[TableCell, ...]
    mean: TableCell
    runs: int = 0
    decimals: int | None = None
    weights: str = ""


@dataclass(frozen=True)
class PublishedRows:
    """Rows of a paper's table, under our columns; values are fractions as ours are.

    source     which table of which paper
    selection  how the paper chose the round, in its own terms or ours; empty if it does not say
    """

    source: str
    rows: tuple[TableRow, ...]
    selection: str = ""
    note: str = ""


@dataclass(frozen=True)
class ResultsTable:
    """All rows of one selection rule and model.

    seeds  number of seeds in each column
    """

    rule: str
    model: str
    metric: str
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[TableRow, ...]
    baseline: str | None = None
    published: PublishedRows | None = None

    @property
    def planned(self) -> int:
        """Number of runs of a complete row."""
        return sum(self.seeds)

    @property
    def names_weights(self) -> bool:
        """Whether rows say how clients are weighted."""
        return any(row.weights for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether no run is missing."""
        return all(row.runs == self.planned for row in self.rows)


def make_table(
    study: Study, rule: str, *, baseline: str | None = None, published: PublishedRows | None = None
) -> ResultsTable:
    """Compute the table of one selection rule; rows without any run are included, empty."""
    rows = [_row(study, label, rule) for label in study.labels]
    if baseline is not None:
        verdicts = {each.ours: each.verdict for each in compare_with_baseline(study, rule, baseline)}
        rows = [replace(row, mean=replace(row.mean, verdict=verdicts.get(row.label, ""))) for row in rows]
    return ResultsTable(
        rule=rule,
        model=study.model if study.several else "",
        metric=study.metric,
        columns=study.domains,
        seeds=tuple(len(study.seeds_at[domain]) for domain in study.domains),
        rows=tuple(_mark_best_rows(rows)),
        baseline=baseline,
        published=published,
    )


def best_row(table: ResultsTable) -> TableRow | None:
    """Return the row with the highest mean; None where nothing can be compared."""
    return next((row for row in table.rows if row.mean.best), None)


def mean_over_domains(study: Study, label: str, rule: str) -> Estimate | None:
    """Average the domains' means with equal weights; None unless every domain has a run.

    The standard error is over the seeds that ran on every domain, of their means over domains.
    """
    by_domain = study.by_domain(label, rule)
    if not study.domains or len(by_domain) < len(study.domains):
        return None
    values = study.values(label, rule)
    whole = [
        sum(values[domain, seed] for domain in study.domains) / len(study.domains)
        for seed in study.seeds
        if all((domain, seed) in values for domain in study.domains)
    ]
    over_seeds = mean_and_error(whole)
    means = [sum(found) / len(found) for found in by_domain.values()]
    return Estimate(sum(means) / len(means), over_seeds.error if over_seeds else None, len(values))


def _row(study: Study, label: str, rule: str) -> TableRow:
    by_domain = study.by_domain(label, rule)
    cells = tuple(TableCell(mean_and_error(by_domain.get(domain, ()))) for domain in study.domains)
    mean = TableCell(mean_over_domains(study, label, rule))
    runs, weights = len(study.values(label, rule)), study.weights.get(label, "")
    return TableRow(label, display_name(label), cells, mean, runs, weights=weights)


def _mark_best_rows(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the best of every column; ties are marked together."""
    width = len(rows[0].cells) if rows else 0
    columns = [_mark_best([row.cells[place] for row in rows]) for place in range(width)]
    means = _mark_best([row.mean for row in rows])
    return [
        replace(row, cells=tuple(column[place] for column in columns), mean=means[place])
        for place, row in enumerate(rows)
    ]


def _mark_best(cells: Sequence[TableCell]) -> list[TableCell]:
    """Mark the best among two or more cells with the most runs: one with fewer may just have been lucky."""
    most = max((cell.estimate.count for cell in cells if cell.estimate), default=0)
    fair = [cell.estimate.mean for cell in cells if cell.estimate and cell.estimate.count == most]
    if len(fair) < 2:
        return list(cells)
    top = max(fair)
    return [
        replace(cell, best=cell.estimate.mean >= top - CLOSE)
        if cell.estimate and cell.estimate.count == most
        else cell
        for cell in cells
    ]
