"""One offline page for a bench: what was found, in a sentence, in tables and in figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen.bench import page_parts as parts
from unseen.bench.comparison_sheets import matrix_sheet
from unseen.bench.figures import BENCH_FIGURES, draw_bench
from unseen.bench.grid import Grid
from unseen.bench.method_sheets import cost_sheet
from unseen.bench.overview import ModelOverview, Overview
from unseen.bench.shown import Shown
from unseen.bench.study import RULES
from unseen.bench.tables import best_row
from unseen.report.markup import Markup, esc, join, section, tag
from unseen.report.page import assemble, figure_markup, page_header
from unseen.report.wording import number


def bench_page(overview: Overview, *, folder: Path, work: Path) -> str:
    """The page; links to runs are relative to `folder`."""
    grid = overview.grid
    body: list[Markup] = [
        page_header(
            f"Bench · {grid.title}" if grid.title else "Bench", esc(headline(overview)), _about(grid)
        ),
        _unfinished(overview),
        parts.paragraphs(grid.note),
    ]
    charts: dict[str, Any] = {}
    for position, each in enumerate(overview.models):
        made, specs = _model_parts(overview, each, prefix=f"{position}-")
        body.append(made)
        charts |= specs
    if overview.printed:
        body.append(section("Published", parts.titled_sheet(overview.printed)))
    runs = [parts.runs_section(each.study, folder, work) for each in overview.models]
    body += [section("Runs", *runs), parts.again_section(grid.to_toml(), folder)]
    return assemble(title=grid.title or headline(overview), body=join(body), charts=charts)


def headline(overview: Overview) -> str:
    """The bench in one sentence: the best method against the baseline, or the best one alone."""
    first = overview.models[0]
    best = best_row(first.honest)
    against = {each.ours: each for found in list(first.against.values())[:1] for each in found}
    if best is not None and best.label in against:
        return against[best.label].words
    if best is not None and best.mean.estimate is not None:
        value = number(best.mean.estimate.mean, first.honest.metric)
        name = f"{best.name}, the baseline," if best.label == overview.baseline else best.name
        return f"{name} has the highest mean: {value} over {len(first.honest.columns)} held-out domains"
    return f"{len(first.honest.rows)} methods on {len(first.honest.columns)} held-out domains"


def _model_parts(overview: Overview, each: ModelOverview, *, prefix: str) -> tuple[Markup, dict[str, Any]]:
    study = each.study
    figures: list[Markup] = []
    charts: dict[str, Any] = {}
    shown = Shown(overview.grid, study, each.honest.rule, overview.baseline)
    for name, panels in draw_bench(shown).items():
        drawn, specs = figure_markup(prefix + name, BENCH_FIGURES[name], panels)
        figures.append(drawn)
        charts |= specs
    first, *others = each.tables
    best = best_row(first)
    matrix = parts.titled_sheet(matrix_sheet(study, first.rule)) if len(study.labels) > 1 else ""
    made = [
        tag("h2", study.model) if study.several else "",
        parts.bench_tiles(study, first),
        section(
            f"Results{study.in_title}",
            parts.titled_sheet(each.table_sheets[first.rule]),
            parts.titled_sheet(each.rules_sheet),
            *(
                parts.folded(
                    f"The table by {RULES[table.rule]}", parts.titled_sheet(each.table_sheets[table.rule])
                )
                for table in others
            ),
        ),
        parts.comparison_section(study, each.statistics_sheets, each.against),
        parts.expectation_section(study, best.label if best else None),
        section(f"Figures{study.in_title}", tag("div", *figures, class_="figures") if figures else ""),
        section(f"More tables{study.in_title}", matrix, parts.titled_sheet(cost_sheet(study))),
    ]
    return join(made), charts


def _about(grid: Grid) -> list[str]:
    seeds = f"{len(grid.seeds)} seeds" if len(grid.seeds) > 1 else f"seed {grid.seeds[0]}"
    model = ", ".join(grid.models) or str(grid.common.get("model") or "")
    return [Path(str(grid.common["data"])).name, model, f"{len(grid.methods)} methods", seeds]


def _unfinished(overview: Overview) -> Markup:
    done, planned = overview.finished, overview.planned
    if done >= planned:
        return Markup("")
    words = f"{done} of {planned} runs are finished. Tables show what there is; numbers will change."
    return tag("p", tag("strong", "Unfinished. "), words, class_="notice", role="status")
