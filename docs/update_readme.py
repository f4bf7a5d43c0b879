"""Write the parts of README.md and results/README.md that follow from elsewhere.

python docs/update_readme.py           the demo's output and the table of methods, from results/demo and the
                                       registry; the means of all grids, from their results.jsonl
python docs/update_readme.py --demo    after a fresh run of the demo, whose results replace results/demo and
                                       whose page is photographed anew; needs Chromium
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unseen.bench.statistics import Estimate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "demo"
PICTURE = ROOT / "docs" / "images" / "report.png"
BROWSER = (
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=10000"
)
NO_NUMBER = "–"
ABOUT_DEMO = """# The demo's results

What `unseen demo` (or `make demo`) printed and the `result.json` of each of its runs. The README shows them,
and the upper part of CSAC's page (docs/images/report.png).

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
        photograph(Path(folder) / "demo" / "csac" / "report.html", PICTURE)
        shutil.rmtree(RESULTS, ignore_errors=True)
        for result in sorted(Path(folder).glob("demo/*/result.json")):
            place = RESULTS / result.parent.name
            place.mkdir(parents=True)
            shutil.copy(result, place)
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    (RESULTS / "output.txt").write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")
    about = ABOUT_DEMO.format(date=datetime.now(UTC).date(), version=__version__)
    (RESULTS / "README.md").write_text(about, encoding="utf-8")


def photograph(page: Path, picture: Path) -> None:
    """Take a picture of the upper part of a page: headline, results, the curves over the rounds."""
    with tempfile.TemporaryDirectory() as profile:
        where = [f"--user-data-dir={profile}", "--window-size=1100,1480", f"--screenshot={picture}"]
        subprocess.run([*BROWSER.split(), *where, page.as_uri()], check=True, capture_output=True)


def demo_block() -> str:
    """The demo as a console session."""
    output = (RESULTS / "output.txt").read_text(encoding="utf-8")
    return f"```console\n$ unseen demo\n{output}```"


def demo_results() -> list[dict[str, object]]:
    """The results behind the demo's output."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*/result.json"))]


def methods_block() -> str:
    """One row for every registered method, with a link to its page."""
    from unseen.methods import METHODS

    lines = ["| `--method` | what it does | paper | what leaves a site |", "|---|---|---|---|"]
    for name in METHODS:
        method = METHODS[name]
        first, *others = method.paper.authors.split(",")
        paper = f"{first}{' et al.' if others else ''}, {method.paper.venue} {method.paper.year}"
        lines.append(
            f"| [`{name}`](docs/methods/{name}.md) | {method.summary} | {paper} | {', '.join(method.sends)} |"
        )
    return "\n".join(lines)


def grids_block() -> str:
    """For every grid that was run, the means of its methods, with the published ones where there are any."""
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"^\| \[([\w-]+)\]", index, re.MULTILINE))
    folders = [ROOT / "results" / name for name in named]
    return "\n\n".join(grid_part(folder) for folder in folders if (folder / "results.jsonl").exists())


def grid_part(folder: Path) -> str:
    """A heading and a table: one row a method, means over the held-out domains in percent."""
    from unseen.bench.bench_tables import mean_over_domains
    from unseen.bench.grid import Grid
    from unseen.bench.published_rows import published_rows
    from unseen.bench.results import read_results
    from unseen.bench.study import display_name, studies

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
    """A mean and its standard error; a dash where a domain has no run."""
    if estimate is None:
        return NO_NUMBER
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.{decimals}f}"
    return f"{100 * estimate.mean:.{decimals}f}{error}"


def with_block(text: str, name: str, content: str) -> str:
    """Put content between the markers of that name."""
    start, end = f"<!-- {name}: written by docs/update_readme.py -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    if not after:
        raise ValueError(f"the markers of {name} are not in the text")
    return before + start + content + end + after


def updated(text: str) -> str:
    """The README as it should be."""
    return with_block(with_block(text, "demo", demo_block()), "methods", methods_block())


def updated_results(text: str) -> str:
    """The index of results as it should be."""
    return with_block(text, "means", grids_block())


if __name__ == "__main__":
    if "--demo" in sys.argv[1:]:
        run_demo()
    for path, write in ((ROOT / "README.md", updated), (ROOT / "results" / "README.md", updated_results)):
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
