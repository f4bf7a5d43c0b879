"""One offline page for a bench: what was found, in a sentence, in tables and in figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unseen.bench.bench_figures import BENCH_FIGURES, FigureContext, draw_bench
from unseen.bench.bench_summary import BenchSummary, ModelSummary
from unseen.bench.bench_tables import ResultsTable, best_row
from unseen.bench.comparisons import PairwiseComparison
from unseen.bench.grid import Grid
from unseen.bench.render import to_latex
from unseen.bench.statistics import expectation_sentence, expected_accuracy
from unseen.bench.study import Study, display_name
from unseen.bench.table_text import Line, Sheet, cost_sheet, expectation_sheet, matrix_sheet
from unseen.evaluation.selection import rule_label
from unseen.report.formatting import NOTHING, format_bytes, format_count, format_duration, format_value
from unseen.report.markup import Markup, esc, join, section, table, tag, tile
from unseen.report.page import assemble, figure_markup, page_header
from unseen.runs.folder import RunFolder


def bench_page(overview: BenchSummary, *, folder: Path, work: Path) -> str:
    """The page; links to runs are relative to `folder`."""
    grid = overview.grid
    body: list[Markup] = [
        page_header(
            f"Bench · {grid.title}" if grid.title else "Bench", esc(headline(overview)), _about(grid)
        ),
        _unfinished(overview),
        paragraphs(grid.note),
    ]
    charts: dict[str, Any] = {}
    for position, each in enumerate(overview.models):
        made, specs = _model_parts(overview, each, prefix=f"{position}-")
        body.append(made)
        charts |= specs
    if overview.printed:
        body.append(section("Published", titled_sheet(overview.printed)))
    runs = [runs_section(each.study, folder, work) for each in overview.models]
    body += [section("Runs", *runs), again_section(grid.to_toml(), folder)]
    return assemble(title=grid.title or headline(overview), body=join(body), charts=charts)


def headline(overview: BenchSummary) -> str:
    """The bench in one sentence: the best method against the baseline, or the best one alone."""
    first = overview.models[0]
    best = best_row(first.honest)
    against = {each.ours: each for found in list(first.against.values())[:1] for each in found}
    if best is not None and best.label in against:
        return against[best.label].words
    if best is not None and best.mean.estimate is not None:
        value = format_value(best.mean.estimate.mean, first.honest.metric)
        name = f"{best.name}, the baseline," if best.label == overview.baseline else best.name
        return f"{name} has the highest mean: {value} over {len(first.honest.columns)} held-out domains"
    return f"{len(first.honest.rows)} methods on {len(first.honest.columns)} held-out domains"


def _model_parts(overview: BenchSummary, each: ModelSummary, *, prefix: str) -> tuple[Markup, dict[str, Any]]:
    study = each.study
    figures: list[Markup] = []
    charts: dict[str, Any] = {}
    shown = FigureContext(overview.grid, study, each.honest.rule, overview.baseline)
    for name, panels in draw_bench(shown).items():
        drawn, specs = figure_markup(prefix + name, BENCH_FIGURES[name], panels)
        figures.append(drawn)
        charts |= specs
    first, *others = each.tables
    best = best_row(first)
    matrix = titled_sheet(matrix_sheet(study, first.rule)) if len(study.labels) > 1 else ""
    made = [
        tag("h2", study.model) if study.several else "",
        bench_tiles(study, first),
        section(
            f"Results{study.in_title}",
            titled_sheet(each.table_sheets[first.rule]),
            titled_sheet(each.rules_sheet),
            *(
                folded(f"The table by {rule_label(table.rule)}", titled_sheet(each.table_sheets[table.rule]))
                for table in others
            ),
        ),
        comparison_section(study, each.statistics_sheets, each.against),
        expectation_section(study, best.label if best else None),
        section(f"Figures{study.in_title}", tag("div", *figures, class_="figures") if figures else ""),
        section(f"More tables{study.in_title}", matrix, titled_sheet(cost_sheet(study))),
    ]
    return join(made), charts


def _about(grid: Grid) -> list[str]:
    seeds = f"{len(grid.seeds)} seeds" if len(grid.seeds) > 1 else f"seed {grid.seeds[0]}"
    model = ", ".join(grid.models) or str(grid.common.get("model") or "")
    return [Path(str(grid.common["data"])).name, model, f"{len(grid.methods)} methods", seeds]


def _unfinished(overview: BenchSummary) -> Markup:
    done, planned = overview.finished, overview.planned
    if done >= planned:
        return Markup("")
    words = f"{done} of {planned} runs are finished. Tables show what there is; numbers will change."
    return tag("p", tag("strong", "Unfinished. "), words, class_="notice", role="status")


def sheet_markup(sheet: Sheet) -> Markup:
    """A sheet as a table of the page; groups with a heading are published and set apart."""
    head = [
        tag("th", name, scope="col", class_="number" if at else "text")
        for at, name in enumerate(sheet.headers)
    ]
    body: list[Markup] = []
    for heading, lines in sheet.groups:
        quiet = "published" if heading else None
        if heading:
            wide = tag("th", heading, scope="rowgroup", colspan=str(len(sheet.headers)), class_="text")
            body.append(tag("tr", wide, class_="published heading"))
        body += [tag("tr", *_cells(line), class_=quiet) for line in lines]
    grid = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", grid, class_="scroll", tabindex="0", role="group")


def titled_sheet(sheet: Sheet) -> Markup:
    """A sheet with its title above, its note below, and its LaTeX to copy."""
    note = tag("p", sheet.note, class_="note") if sheet.note else ""
    latex = tag("pre", tag("code", to_latex(sheet)), tabindex="0")
    source = tag("details", tag("summary", "LaTeX"), latex)
    return tag("div", tag("h3", sheet.title), sheet_markup(sheet), note, source, class_="sheet")


def folded(summary: str, *children: object) -> Markup:
    """Content that is there when asked for."""
    return tag("details", tag("summary", summary), *children)


def comparison_section(
    study: Study, sheets: dict[str, Sheet], found: dict[str, list[PairwiseComparison]]
) -> Markup:
    """Sentences and the table of tests under the honest rule; the other rules folded away."""
    if not found or not any(found.values()):
        return Markup("")
    honest = next(iter(found))
    told = tag("ul", *(tag("li", each.words + ".") for each in found[honest]))
    others = [
        folded(f"The same by {rule_label(rule)}", titled_sheet(sheets[rule])) for rule in list(found)[1:]
    ]
    return section(
        f"Against {display_name(found[honest][0].baseline)}{study.in_title}",
        told,
        titled_sheet(sheets[honest]),
        *others,
    )


def expectation_section(study: Study, best: str | None) -> Markup:
    """What to expect of the best method on a new site, in words, and the table of all."""
    rule = study.rules[0] if study.rules else ""
    sheet = expectation_sheet(study, rule)
    if not any(lines for _, lines in sheet.groups):
        return Markup("")
    found = expected_accuracy(study.by_domain(best, rule), metric=study.metric) if best else None
    told = tag("p", expectation_sentence(found, display_name(best))) if found and best else ""
    return section(f"Expected on a new site{study.in_title}", told, titled_sheet(sheet))


def bench_tiles(study: Study, table_: ResultsTable) -> Markup:
    """The key numbers: the best complete method, how many runs there are, what they cost."""
    made: list[Markup] = []
    best = best_row(table_)
    if best is not None and best.mean.estimate is not None:
        hint = f"mean over {len(table_.columns)} held-out domains, round by {rule_label(table_.rule)}"
        value = format_value(best.mean.estimate.mean, table_.metric)
        made.append(tile(f"{best.name}, the highest mean", value, hint, hero=True))
    planned, done = table_.planned * len(table_.rows), len(study.results)
    missing = "all finished" if done >= planned else f"of {format_count(planned)} planned"
    made.append(tile("runs", format_count(done), missing))
    made.append(
        tile("training time", format_duration(sum(run.seconds for run in study.results)), "all runs together")
    )
    sent = sum(run.bytes_up for run in study.results)
    made.append(tile("sent by clients", format_bytes(sent) if sent else NOTHING, "all runs together"))
    return tag("dl", *made, class_="tiles few")


def runs_section(study: Study, folder: Path, work: Path) -> Markup:
    """Every run with its numbers, and a link to its own report where that lies beside the page."""
    rows: list[list[object]] = []
    for result in sorted(
        study.results, key=lambda run: (study.labels.index(run.label), run.held_out, run.seed)
    ):
        report = RunFolder(work / result.job).report
        name: object = display_name(result.label)
        if report.is_file():
            name = tag("a", name, href=quote(Path(os.path.relpath(report, folder)).as_posix()))
        values = (format_value(result.accuracy.get(rule), study.metric) for rule in study.rules)
        rows.append([name, result.held_out, *values, str(result.seed), format_duration(result.seconds)])
    if not rows:
        return Markup("")
    headers = ["method", "held out", *(rule_label(rule) for rule in study.rules), "seed", "time"]
    shown = table(headers, rows, text_columns=2, tall=len(rows) > 12)
    return folded(f"All {len(rows)} runs" + (f" of {study.model}" if study.several else ""), shown)


def again_section(toml: str, folder: Path) -> Markup:
    """The grid as a file, and the command that repeats or goes on with the bench."""
    command = tag("pre", tag("code", f"unseen bench grid.toml --out {folder.name or 'bench'}"), tabindex="0")
    words = tag("p", "With this as grid.toml; finished runs are not repeated:")
    return section("Run it again", words, tag("pre", tag("code", toml), tabindex="0"), command)


def paragraphs(text: str) -> Markup:
    """Plain text; empty lines part paragraphs."""
    blocks: Sequence[str] = [block.strip() for block in text.split("\n\n") if block.strip()]
    return join(tag("p", block) for block in blocks)


def _cells(line: Line) -> list[Markup]:
    words = [tag("strong", cell.text) if cell.bold else cell.text for cell in line]
    first = tag("th", words[0], scope="row", class_="text")
    return [first, *(tag("td", word, class_="number") for word in words[1:])]
