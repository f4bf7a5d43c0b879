"""The documents say what is so: commands parse, links lead somewhere, tables match code and records."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from unseen.cli.main import app
from unseen.config import RunConfig
from unseen.data import list_sources
from unseen.data.augment import AUGMENTATIONS
from unseen.federation import PARTITIONS
from unseen.methods import METHODS
from unseen.training import GRADIENT_RULES, OPTIMIZERS, SCHEDULES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("results/**/*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    return [body for language, body in FENCE.findall(text) if language == "python"]


def shell_commands(text: str) -> list[str]:
    """Lines that call `unseen`, as in a script, a session or an indented example."""
    joined = text.replace("\\\n", " ")
    return [line.strip().removeprefix("$ ") for line in joined.splitlines() if _calls_unseen(line)]


def _calls_unseen(line: str) -> bool:
    return line.strip().removeprefix("$ ").startswith("unseen ")


def commands_of(text: str) -> list[str]:
    """Every command that a document shows, in blocks and inside sentences."""
    blocks = [body for language, body in FENCE.findall(text) if language in ("sh", "console", "")]
    inline = CODE.findall(FENCE.sub("", text))
    return [*(command for body in blocks for command in shell_commands(body)), *filter(_calls_unseen, inline)]


class WrongCommandError(Exception):
    """A command line that `unseen` would refuse."""


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Go down the tree of sub-commands; return the last one and what is left for it."""
    command: Any = typer.main.get_command(app)
    while getattr(command, "commands", {}) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise WrongCommandError(f"no such command: {words[0]}")
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(line: str) -> None:
    """Parse a command without running it; a bare mention such as `unseen train` need only exist."""
    name, *words = shlex.split(line, comments=True)
    command, rest = find_command(words)
    if not rest:
        return
    try:
        with command.make_context(name, list(rest)):
            pass
    except Exception as error:  # newer versions of typer bring a click of their own, with classes of its own
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" in kinds:
            raise WrongCommandError(str(error)) from error
        assert "Exit" in kinds, error
        assert {"--help", "--version"} & set(rest)


def all_commands(command: Any = None, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Every sub-command with its full name."""
    command = command or typer.main.get_command(app)
    found = [(" ".join(("unseen", *path)), command)]
    for name, inner in getattr(command, "commands", {}).items():
        found += all_commands(inner, (*path, name))
    return found


SHOWN = [(path.name, line) for path in DOCUMENTS for line in commands_of(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("document", "line"), SHOWN)
def test_shown_commands_parse(document, line):
    parse(line)


def test_commands_are_found_in_the_documents():
    assert {"README.md", "CONTRIBUTING.md", "data.md", "results-format.md"} <= {name for name, _ in SHOWN}


@pytest.mark.parametrize("line", ["unseen trian", "unseen train x --holdout y", "unseen report --out x"])
def test_wrong_commands_do_not_parse(line):
    with pytest.raises(WrongCommandError):
        parse(line)


@pytest.mark.parametrize(("name", "command"), all_commands(), ids=str)
def test_help_has_examples_that_parse(name, command):
    examples = shell_commands(command.help or "")
    assert any(example.startswith(name) for example in examples), f"`{name} --help` shows no example"
    for example in examples:
        parse(example)


def test_every_command_is_in_the_readme():
    shown = [mention for mention in CODE.findall(read("README.md")) if mention.startswith("unseen ")]
    leaves = [name for name, command in all_commands() if not getattr(command, "commands", {})]
    assert [name for name in leaves if not any(text.startswith(name) for text in shown)] == []


def test_the_page_on_training_names_every_schedule_optimizer_and_gradient_rule():
    mentioned = set(CODE.findall(read("docs/training.md")))
    assert {*SCHEDULES, *OPTIMIZERS} <= mentioned
    assert {f"--sharpness {name}" for name in GRADIENT_RULES if name != "none"} <= mentioned


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        if link.startswith(("https://", "http://")):
            continue
        place, _, anchor = link.partition("#")
        target = document.parent / place if place else document
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in _anchors(target), f"{link}: no such heading"


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def update_readme():
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "docs" / "update_readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_is_up_to_date(update_readme):
    text = read("README.md")
    assert text == update_readme.updated(text), "run `python docs/update_readme.py`"


def test_index_of_methods_is_up_to_date(update_readme):
    text = read("docs/methods/README.md")
    assert text == update_readme.updated_methods(text), "run `python docs/update_readme.py`"


def test_index_of_results_is_up_to_date_and_complete(update_readme):
    text = read("results/README.md")
    assert text == update_readme.updated_results(text), "run `python docs/update_readme.py`"
    for lines in (ROOT / "results").glob("*/results.jsonl"):
        assert f"### {lines.parent.name}\n" in text, "a grid that the index does not name"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name):
    page = read(f"docs/methods/{name}.md")
    assert page.startswith(f"# {METHODS[name].title}")
    assert f"]({METHODS[name].paper.url})" in page, "the page links to the paper"
    assert "## Idea" in page and "## What leaves the client" in page
    assert set(CODE.findall(page)) >= {field.name for field in fields(METHODS[name].settings_type())}


def test_demo_output_comes_from_its_records(update_readme):
    rows = [line.split() for line in update_readme.demo_block().splitlines()]
    results = update_readme.demo_results()
    assert results
    for result in results:
        (row,) = (row for row in rows if row and row[0].lower() == result["method"] and "MB" in row)
        parts = ("target", "target_oracle", "target_last", "source_validation", "in_domain")
        expected = [f"{100 * result['metrics'][part]['accuracy']:.1f}" for part in parts]
        assert row[2 : 2 + len(parts)] == expected


def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(read("README.md"))
    exec(compile(block, "README.md", "exec"), {})
    accuracy, folder = capsys.readouterr().out.splitlines()[0].split()
    assert 0 <= float(accuracy) <= 1
    assert Path(folder, "report.html").exists()


def first_column(text: str, header: str) -> set[str]:
    """The names in the first column of the table that starts with `header`."""
    _, _, rest = text.partition(f"| {header} |")
    rows = rest.split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in CODE.findall(row.split("|")[1])}


def test_data_tables_match_the_code():
    text = read("docs/data.md")
    assert first_column(text, "name | what it is") == {name for name, _ in list_sources()}
    assert first_column(text, "`--partition`") == set(PARTITIONS)
    assert first_column(text, "name | what it does") == set(AUGMENTATIONS)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    from unseen import train

    out = tmp_path_factory.mktemp("format") / "run"
    return train("rotated-digits", hold_out="75", rounds=1, batches_per_epoch=2, workers=1, out=out).folder


def test_format_names_every_field(run_folder):
    text = read("docs/results-format.md")
    named = set(CODE.findall(text))
    assert {field.name for field in fields(RunConfig)} <= named
    assert {path.name for path in run_folder.iterdir()} - {"checkpoints"} <= named
    result = json.loads((run_folder / "result.json").read_text(encoding="utf-8"))
    metrics = result["metrics"]
    assert {*result, *metrics, *metrics["target"], result["selection"]} <= named
    for line in (run_folder / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        (row,) = re.findall(rf"^\| `{record['event']}` \|.*$", text, re.MULTILINE)
        assert set(record) - {"event"} <= set(CODE.findall(row))
        lists = [value for value in record.values() if isinstance(value, list)]
        inner = [
            record.get("data", {}),
            *(part for value in lists for part in value if isinstance(part, dict)),
        ]
        assert {key for part in inner for key in part} <= named
