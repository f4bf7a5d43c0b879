"""Hooks of MkDocs that make a site of this repository: `make docs` builds it, mkdocs.yml configures it.

The documents link to one another, to results, to code and to tests as files of the repository. Here README.md
becomes the first page, other documents keep their paths, and code that is linked gets a page of its own. A
link to a file that does not exist is a warning, which ends a strict build. The pages of the Python API are
written from the docstrings.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "results/**/*.md")
"""Documents outside of docs/, which MkDocs finds itself."""
DOWNLOADS = {".png", ".json", ".jsonl", ".csv", ".svg"}
"""Kinds of linked files that are copied as they are; others are shown as text."""
API = {
    "unseen": "The calls: train, bench, judge, load",
    "unseen.sklearn": "Estimators in scikit-learn's manner",
    "unseen.methods": "Methods",
    "unseen.training": "Local training of a client",
    "unseen.aggregation": "Aggregation at the server",
    "unseen.data": "Data sets and formats",
    "unseen.federation": "Clients, splits and partitions",
    "unseen.models": "Networks",
    "unseen.tasks": "Tasks and metrics",
    "unseen.evaluation": "Evaluation and selection",
    "unseen.privacy": "Protections",
    "unseen.callbacks.base": "Callbacks",
    "unseen.serving": "Finished models",
    "unseen.hparams": "Settings",
    "unseen.errors": "Errors",
}
"""Modules of the API reference: what extending.md and python.md import from."""

BENCH = """
## bench

::: unseen.bench.bench_call.bench
"""
"""On the page of `unseen`: docstring tools see the package of this name, which is callable."""

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
LINK = re.compile(r"""(?:(?<=\]\()|(?<=<img src="))[^)\s"]+(?=[)"])""")
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
log = logging.getLogger("mkdocs.plugins.site_pages")


def on_config(config: Any) -> Any:
    """Name the pages of methods and of the Python API in the menu."""
    methods = sorted(
        (ROOT / "docs" / "methods").glob("*.md"), key=lambda path: (path.stem != "README", path.stem)
    )
    config.nav.append({"Methods": [place(path) for path in methods]})
    config.nav.append({"Python API": [{module: f"reference/{module}.md"} for module in API]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/: documents, code that they link to, notebooks, the API reference."""
    from mkdocs.structure.files import File

    documents = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]
    pages = [*documents, *(ROOT / "docs").glob("**/*.md")]
    linked = {target for page in pages for target in linked_files(page)}
    folders = {path for path in linked if path.is_dir()}
    linked |= {inner for folder in folders for inner in folder.iterdir() if inner.is_file()}
    for path in sorted({*documents, *linked}):
        if path.suffix in DOWNLOADS:
            if ROOT / "docs" not in path.parents:
                files.append(File.generated(config, place(path), abs_src_path=str(path)))
        elif files.get_file_from_path(place(path)) is None:
            files.append(File.generated(config, place(path), content=page_text(path)))
    for module, title in API.items():
        text = f"# {module}\n\n{title}.\n\n::: {module}\n{BENCH if module == 'unseen' else ''}"
        files.append(File.generated(config, f"reference/{module}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to pages of the site."""
    origin = origin_of(page.file.src_uri)
    return markdown if origin is None else with_site_links(markdown, origin)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Write formulas as MathML, which browsers draw without a script."""
    from html import unescape

    from latex2mathml.converter import convert

    def draw(found: re.Match[str]) -> str:
        return str(convert(unescape(found["tex"]), display="block" if found["tag"] == "div" else "inline"))

    return FORMULA.sub(draw, html)


def place(path: Path) -> str:
    """Name the source of the site's page for a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if path.is_dir() and (path / "README.md").exists():
        return f"{name}/README.md"
    if path.suffix in {".md", *DOWNLOADS}:
        return name.removeprefix("docs/")
    if path.suffix == ".ipynb":
        return f"{name.removeprefix('docs/')}.md"
    return f"source/{name}/index.md" if path.is_dir() else f"source/{name}.md"


def origin_of(page: str) -> Path | None:
    """Find the document that a page was made of; none for pages that are written here."""
    name = page.removesuffix(".md") if page.endswith(".ipynb.md") else page
    candidates = [ROOT / "README.md"] if name == "index.md" else [ROOT / "docs" / name, ROOT / name]
    return next((path for path in candidates if path.is_file()), None)


def links_of(text: str, document: Path) -> Iterator[tuple[str, Path]]:
    """Yield the links of a document to files, as written and as files."""
    for link in LINK.findall(FENCE.sub("", text)):
        name = link.partition("#")[0]
        if name and not link.startswith(("https://", "http://")):
            yield link, Path(os.path.normpath(document.parent / name))


def linked_files(document: Path) -> set[Path]:
    """Find the files and folders that a document links to."""
    links = links_of(document.read_text(encoding="utf-8"), document)
    return {path for _, path in links if path.exists() and ROOT in path.parents}


def with_site_links(text: str, document: Path) -> str:
    """Replace the links of a document by those of the site; warn of those that lead nowhere."""
    new = {}
    start = PurePosixPath(place(document)).parent
    for link, path in links_of(text, document):
        if not path.exists() or ROOT not in path.parents:
            log.warning("%s: %s leads nowhere", document.relative_to(ROOT), link)
            continue
        anchor = "#" + link.partition("#")[2] if "#" in link else ""
        new[link] = os.path.relpath(place(path), start).replace(os.sep, "/") + anchor
    parts = re.split(f"({FENCE.pattern})", text, flags=FENCE.flags)
    return "".join(
        part if number % 2 else LINK.sub(lambda found: new.get(found[0], found[0]), part)
        for number, part in enumerate(parts)
    )


def page_text(path: Path) -> str:
    """Write the page of a file: a document as it is, a notebook's cells, code; list a folder's files."""
    if path.is_dir():
        inner = sorted(file for file in path.iterdir() if file.is_file())
        base = PurePosixPath(place(path)).parent
        lines = [f"- [{file.name}]({os.path.relpath(place(file), base)})" for file in inner]
        return "\n".join([f"# {path.relative_to(ROOT).as_posix()}", "", *lines, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(map(_cell_text, json.loads(text)["cells"]))
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", text)), default=2))
    about = ast.get_docstring(ast.parse(text)) if path.suffix == ".py" else None
    language = {".py": "python", ".toml": "toml", ".service": "ini"}.get(path.suffix, "text")
    heading = f"# {path.name}\n\n`{path.relative_to(ROOT).as_posix()}`" + (
        f": {about.splitlines()[0]}" if about else ""
    )
    return f"{NOT_SEARCHED}{heading}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _cell_text(cell: dict[str, Any]) -> str:
    """Write a cell with its text outputs; pictures and tables stay in the notebook."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    blocks = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        shown = output.get("text") or output.get("data", {}).get("text/plain", [])
        if shown:
            blocks.append(f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join(blocks)
