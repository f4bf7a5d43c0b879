"""Write the parts of README.md that follow from elsewhere: the demo's output and the table of methods.

python docs/update_readme.py           from results/demo and the registry of methods
python docs/update_readme.py --demo    after a fresh run of the demo, whose results replace results/demo and
                                       whose page is photographed anew; needs Chromium
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "demo"
PICTURE = ROOT / "docs" / "images" / "report.png"
BROWSER = (
    "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=10000"
)
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
        shutil.rmtree(RESULTS, ignore_errors=True)
        for result in sorted(Path(folder).glob("demo/*/result.json")):
            place = RESULTS / result.parent.name
            place.mkdir(parents=True)
            shutil.copy(result, place)
        photograph(Path(folder) / "demo" / "csac" / "report.html", PICTURE)
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


if __name__ == "__main__":
    if "--demo" in sys.argv[1:]:
        run_demo()
    readme = ROOT / "README.md"
    readme.write_text(updated(readme.read_text(encoding="utf-8")), encoding="utf-8")
