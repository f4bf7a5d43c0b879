"""Write the parts of the documents that are generated from code and records.

python docs/update_readme.py           README.md: the demo's output, from results/demo
                                       docs/methods/README.md: the table of methods, from the registry
                                       docs/methods/NAME.md: a page to fill in for every method without one
                                       results/README.md: the means of all grids, from their results.jsonl
python docs/update_readme.py --demo    the same after a fresh run of the demo, which replaces results/demo and
                                       the screenshot of its page; needs Chromium
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.bench.statistics import Estimate
    from unseen.methods import Method

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "demo"
SCREENSHOT = ROOT / "docs" / "images" / "report.png"
METHOD_PAGES = ROOT / "docs" / "methods"
BROWSER = (
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=10000"
)
NO_NUMBER = "–"
ABOUT_DEMO = """# The demo's results

The output of `unseen demo` (or `make demo`) and the `result.json` of each of its runs. The README shows
them, and the upper part of CSAC's page (docs/images/report.png).

One seed on small data: with another `--seed` FedAvg and CSAC can change places. Rounds, epochs and
learning rate were chosen so that the demo is quick, with the results of three seeds in view.

- Command: `python docs/update_readme.py --demo`, which runs `unseen demo --out demo` and copies these files
- Date: {date}
- Version: {version}
"""


def run_demo() -> None:
    """Run the demo in an empty folder and keep its output and its results."""
    from unseen import __version__

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "unseen", "demo", "--out", "demo"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        take_screenshot(Path(folder) / "demo" / "csac" / "report.html", SCREENSHOT)
        shutil.rmtree(RESULTS, ignore_errors=True)
        for result in sorted(Path(folder).glob("demo/*/result.json")):
            place = RESULTS / result.parent.name
            place.mkdir(parents=True)
            shutil.copy(result, place)
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    (RESULTS / "output.txt").write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")
    about = ABOUT_DEMO.format(date=datetime.now(UTC).date(), version=__version__)
    (RESULTS / "README.md").write_text(about, encoding="utf-8")


def take_screenshot(page: Path, image: Path) -> None:
    """Save the upper part of a page as an image: headline, results, the curves over the rounds."""
    with tempfile.TemporaryDirectory() as profile:
        where = [f"--user-data-dir={profile}", "--window-size=1100,1480", f"--screenshot={image}"]
        subprocess.run([*BROWSER.split(), *where, page.as_uri()], check=True, capture_output=True)


def demo_block() -> str:
    """Format the demo's output as a console session."""
    output = (RESULTS / "output.txt").read_text(encoding="utf-8")
    return f"```console\n$ unseen demo\n{output}```"


def demo_results() -> list[dict[str, object]]:
    """Read the results that the demo's output shows."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*/result.json"))]


def methods_block() -> str:
    """Build a table of registered methods per family, with links to their pages and papers."""
    from unseen.methods import FAMILIES, group_by_family

    head = ["| `--method` | what it does | paper | what leaves a site |", "|---|---|---|---|"]
    parts = []
    for family, methods in group_by_family().items():
        heading = [
            f"## {family.capitalize()}",
            "",
            f"{FAMILIES[family][0].upper()}{FAMILIES[family][1:]}.",
            "",
        ]
        parts.append("\n".join([*heading, *head, *map(method_line, methods)]))
    return "\n\n".join(parts)


def method_line(method: type[Method[Any]]) -> str:
    """Build the line of a method in its family's table."""
    first, *others = method.paper.authors.split(",")
    paper = f"{first}{' et al.' if others else ''}, {method.paper.venue} {method.paper.year}"
    cells = [
        f"[`{method.name}`]({method.name}.md)",
        method.summary,
        f"[{paper}]({method.paper.url})" if method.paper.url else paper,
        ", ".join(method.sends),
    ]
    return f"| {' | '.join(cells)} |"


def method_page(method: type[Method[Any]]) -> str:
    """Build a template of a method's page from its declarations."""
    from unseen.methods import describe_settings

    paper = method.paper
    title = f"[*{paper.title}*]({paper.url})" if paper.url else f"*{paper.title}*"
    rows = [
        f"| `{name}` | {default} | {meaning} |"
        for name, default, meaning in describe_settings(method.settings_type())
    ]
    settings = ["| setting | default | meaning |", "|---|---|---|", *rows] if rows else ["None."]
    sections = {
        "Idea": [f"{method.summary[0].upper()}{method.summary[1:]}."],
        "Equations": [" ".join((method.__doc__ or "").split())],
        "Settings": settings,
        "What leaves the client": [f"{', '.join(method.sends).capitalize()}."],
        "Where our reading differs": ["Nowhere that we know of."],
    }
    parts = [f"## {heading}\n" + "\n".join(lines) for heading, lines in sections.items()]
    head = (
        f"# {method.title}\n\n{paper.authors}: {title}, {paper.venue} {paper.year}.\n"
        f"`unseen train rotated-digits --hold-out 75 --method {method.name}`"
    )
    return "\n\n".join([head, *parts]) + "\n"


def add_missing_pages(folder: Path = METHOD_PAGES) -> list[Path]:
    """Write a page for every method that has none; return those written."""
    from unseen.methods import METHODS

    missing = {folder / f"{name}.md": METHODS[name] for name in METHODS}
    missing = {path: method for path, method in missing.items() if not path.exists()}
    for path, method in missing.items():
        path.write_text(method_page(method), encoding="utf-8")
    return list(missing)


def grids_block() -> str:
    """Build the tables of means of every grid that was run, next to published ones where there are any."""
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"^\| \[([\w-]+)\]", index, re.MULTILINE))
    folders = [ROOT / "results" / name for name in named]
    return "\n\n".join(grid_part(folder) for folder in folders if (folder / "results.jsonl").exists())


def grid_part(folder: Path) -> str:
    """Build a heading and a table: one row per method, means over the held-out domains in percent."""
    from unseen.bench.bench_summary import published_rows
    from unseen.bench.grid import Grid
    from unseen.bench.results import read_results
    from unseen.bench.study import display_name, studies
    from unseen.bench.tables.results_table import mean_over_domains

    written, as_run = folder / "grid.toml", folder / "bench.toml"
    grid = Grid.from_toml(written if written.exists() else as_run)
    heads, lines = ["method", "source validation", "oracle", "runs"], []
    for study in studies(grid, read_results(folder / "results.jsonl")):
        beside = published_rows(grid.published, study) if grid.published else None
        printed = {row.name: row for row in beside.rows} if beside else {}
        for label in study.labels:
            name = display_name(label)
            ours = [mean_over_domains(study, label, rule) for rule in ("source-validation", "oracle")]
            runs = f"{len(study.values(label, 'oracle'))} of {study.planned}"
            cells = [name + study.in_title, *(percent(mean, decimals=1) for mean in ours), runs]
            if printed:
                row = printed.get(name)
                cells.append(percent(row.mean.estimate, decimals=row.decimals or 0) if row else NO_NUMBER)
            lines.append(cells)
    heads += ["published"] * (len(lines[0]) - len(heads))
    rows = [heads, ["---", *["--:"] * (len(heads) - 1)], *lines]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"### {folder.name}\n\n[{grid.title}]({folder.name}/table.md)\n\n{table}"


def percent(estimate: Estimate | None, *, decimals: int) -> str:
    """Format a mean and its standard error; a dash where a domain has no run."""
    if estimate is None:
        return NO_NUMBER
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.{decimals}f}"
    return f"{100 * estimate.mean:.{decimals}f}{error}"


def with_block(text: str, name: str, content: str) -> str:
    """Replace the content between the markers of that name."""
    start, end = f"<!-- {name}: written by docs/update_readme.py -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    if not after:
        raise ValueError(f"the markers of {name} are not in the text")
    return before + start + content + end + after


def updated(text: str) -> str:
    """Return the README with its generated part up to date."""
    return with_block(text, "demo", demo_block())


def updated_methods(text: str) -> str:
    """Return the index of methods with its generated part up to date."""
    return with_block(text, "methods", methods_block())


def updated_results(text: str) -> str:
    """Return the index of results with its generated part up to date."""
    return with_block(text, "means", grids_block())


if __name__ == "__main__":
    if "--demo" in sys.argv[1:]:
        run_demo()
    for added in add_missing_pages():
        print(f"new page to fill in: {added.relative_to(ROOT)}")
    documents = {
        ROOT / "README.md": updated,
        METHOD_PAGES / "README.md": updated_methods,
        ROOT / "results" / "README.md": updated_results,
    }
    for path, write in documents.items():
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
