"""The parts of a bench's page: each a function of one model's results, empty if it has nothing to show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from unseen.bench.against import Against
from unseen.bench.expectation import expectation_sentence, expected_accuracy
from unseen.bench.method_sheets import expectation_sheet
from unseen.bench.render import to_latex
from unseen.bench.sheets import Line, Sheet
from unseen.bench.study import RULES, Study, display_name
from unseen.bench.tables import Table, best_row
from unseen.report.markup import Markup, join, section, table, tag, tile
from unseen.report.wording import NOTHING, count, duration, number, size


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


def comparison_section(study: Study, sheets: dict[str, Sheet], found: dict[str, list[Against]]) -> Markup:
    """Sentences and the table of tests under the honest rule; the other rules folded away."""
    if not found or not any(found.values()):
        return Markup("")
    honest = next(iter(found))
    told = tag("ul", *(tag("li", each.words + ".") for each in found[honest]))
    others = [folded(f"The same by {RULES[rule]}", titled_sheet(sheets[rule])) for rule in list(found)[1:]]
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


def bench_tiles(study: Study, table_: Table) -> Markup:
    """The key numbers: the best complete method, how many runs there are, what they cost."""
    made: list[Markup] = []
    best = best_row(table_)
    if best is not None and best.mean.estimate is not None:
        hint = f"mean over {len(table_.columns)} held-out domains, round by {RULES[table_.rule]}"
        value = number(best.mean.estimate.mean, table_.metric)
        made.append(tile(f"{best.name}, the highest mean", value, hint, hero=True))
    planned, done = table_.planned * len(table_.rows), len(study.results)
    missing = "all finished" if done >= planned else f"of {count(planned)} planned"
    made.append(tile("runs", count(done), missing))
    made.append(
        tile("training time", duration(sum(run.seconds for run in study.results)), "all runs together")
    )
    sent = sum(run.bytes_up for run in study.results)
    made.append(tile("sent by clients", size(sent) if sent else NOTHING, "all runs together"))
    return tag("dl", *made, class_="tiles few")


def runs_section(study: Study, folder: Path, work: Path) -> Markup:
    """Every run with its numbers, and a link to its own report where that lies beside the page."""
    rows: list[list[object]] = []
    for result in sorted(
        study.results, key=lambda run: (study.labels.index(run.label), run.held_out, run.seed)
    ):
        report = work / result.job / "report.html"
        name: object = display_name(result.label)
        if report.is_file():
            name = tag("a", name, href=quote(Path(os.path.relpath(report, folder)).as_posix()))
        values = (number(result.accuracy.get(rule), study.metric) for rule in study.rules)
        rows.append([name, result.held_out, *values, str(result.seed), duration(result.seconds)])
    if not rows:
        return Markup("")
    headers = ["method", "held out", *(RULES[rule] for rule in study.rules), "seed", "time"]
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
