"""Every example of docs/extending.md, saved as one file elsewhere and used through the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
TRAIN = (
    *("train", "rotated-digits", "--hold-out", "75", "--rounds", "2"),
    *("--batches-per-epoch", "2", "--workers", "1"),
)
LONGEST_EXAMPLE = 30


def example(heading: str) -> str:
    """The first Python block below a heading of the page."""
    found = re.search(
        rf"^## {re.escape(heading)}\n.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.S | re.M
    )
    assert found, f"docs/extending.md has no example below {heading!r}"
    return found.group(1)


@pytest.fixture
def unseen(tmp_path: Path):
    """Run the command in an empty folder; return what it printed."""

    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "unseen", *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def plugin(tmp_path: Path):
    """Save an example as a file and return the options that name it."""

    def save(heading: str) -> tuple[str, str]:
        path = tmp_path / "plugins" / "my_file.py"
        path.parent.mkdir()
        path.write_text(example(heading), encoding="utf-8")
        return "--plugin", str(path)

    return save


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records(folder) if record["event"] == "round"]


@pytest.fixture
def compare(unseen, plugin, tmp_path: Path):
    """Train with the built-in default and with the plugin's part; return the two run folders."""

    def both(heading: str, *options: str, plain: tuple[str, ...] = ()) -> tuple[Path, Path]:
        named = plugin(heading)
        unseen(*TRAIN, *plain, "--out", "plain")
        unseen(*TRAIN, *options, *named, "--out", "extended")
        return tmp_path / "plain", tmp_path / "extended"

    return both


@pytest.mark.parametrize(
    ("heading", "options", "plain"),
    [
        ("Method", ("--method", "median"), ()),
        ("Optimizer", ("--optimizer", "nadam"), ()),
        ("Schedule", ("--schedule", "linear"), ()),
        ("Gradient rule", ("--sharpness", "signs"), ()),
        ("Augmentation", ("--augment", "noise"), ()),
        ("Task and its loss", ("--task", "focal"), ()),
        ("Protection", ("--protect", "rounded"), ()),
        ("Partition", ("--partition", "first-and-rest", "--batch-size", "8"), ("--batch-size", "8")),
    ],
)
def test_a_registered_part_is_used_and_changes_the_training(compare, heading, options, plain):
    before, after = compare(heading, *options, plain=plain)
    assert losses(before) != losses(after)
    config = (after / "config.toml").read_text("utf-8")
    assert f'"{options[1]}"' in config


def test_an_average_is_evaluated_and_training_does_not_see_it(compare):
    before, after = compare("Average", "--average", "midpoint", plain=())
    assert losses(before) == losses(after)
    one, other = (
        [record["scores"] for record in records(folder) if record["event"] == "evaluation"]
        for folder in (before, after)
    )
    assert one[0] == other[0] and one[1:] != other[1:]


def test_a_partition_makes_its_clients(unseen, plugin, tmp_path):
    unseen(*TRAIN, *plugin("Partition"), "--partition", "first-and-rest", "--batch-size", "8", "--out", "run")
    (first, *_) = [record for record in records(tmp_path / "run") if record["event"] == "round"]
    assert {"0-small", "0-large", "60-small", "60-large"} <= set(first["clients"])


def test_a_metric_appears_in_records_result_and_page(compare):
    before, after = compare("Metric")
    assert losses(before) == losses(after), "a metric only observes"
    result = json.loads((after / "result.json").read_text("utf-8"))
    assert 0 < result["metrics"]["target"]["macro_f1"] < 1
    (final,) = [record for record in records(after) if record["event"] == "final"]
    assert all("macro_f1" in score["metrics"] for score in final["scores"])
    assert "macro F1" in (after / "report.html").read_text("utf-8")


def test_a_selection_rule_chooses_the_round(compare):
    _, after = compare("Selection rule", "--selection", "worst-source")
    result = json.loads((after / "result.json").read_text("utf-8"))
    assert result["selection"] == "worst-source"
    evaluations = [record for record in records(after) if record["event"] == "evaluation"]
    worst = {
        record["round"]: min(
            score["metrics"]["accuracy"] for score in record["scores"] if score["split"] == "validation"
        )
        for record in evaluations
    }
    assert worst[result["selected_round"]] == max(worst.values())
    assert "worst source" in (after / "report.html").read_text("utf-8")


def test_a_callback_follows_the_run(compare):
    before, after = compare("Callback", "--track", "rounds-csv")
    rows = (after / "rounds.csv").read_text("utf-8").splitlines()
    assert [float(row.split(",")[1]) for row in rows] == losses(after) == losses(before)


def test_a_data_format_is_recognized(unseen, plugin, tmp_path):
    named = plugin("Data format")
    make = (
        "import numpy as np; r = np.random.default_rng(0); "
        "np.savez('cells.npz', inputs=r.integers(0, 256, (90, 8, 8, 1), dtype=np.uint8), "
        "targets=np.arange(90) % 3, domains=np.repeat(['a', 'b', 'c'], 30))"
    )
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    unseen(
        "train", "cells.npz", "--hold-out", "c", "--rounds", "1", "--batch-size", "8", *named, "--out", "run"
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert result["data"] == "cells"
    assert result["held_out"] == ["c"]


def test_a_figure_is_drawn_on_the_page(unseen, plugin, tmp_path):
    unseen(*TRAIN, *plugin("Figure"), "--out", "run")
    assert "Clients per round" in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize("heading", re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.M))
def test_examples_are_short(heading):
    if heading != "As an installed package":
        assert len(example(heading).splitlines()) <= LONGEST_EXAMPLE


@pytest.mark.parametrize(
    ("heading", "kind", "name"),
    [
        ("Method", "methods", "median"),
        ("Optimizer", "optimizers", "nadam"),
        ("Schedule", "schedules", "linear"),
        ("Gradient rule", "gradient-rules", "signs"),
        ("Average", "averages", "midpoint"),
        ("Aggregator", "aggregators", "midrange"),
        ("Augmentation", "augmentations", "noise"),
        ("Partition", "partitions", "first-and-rest"),
        ("Task and its loss", "tasks", "focal"),
        ("Metric", "metrics", "macro_f1"),
        ("Selection rule", "selection-rules", "worst-source"),
        ("Protection", "protections", "rounded"),
        ("Callback", "callbacks", "rounds-csv"),
        ("Data format", "formats", "npz"),
        ("Figure", "figures", "clients"),
    ],
)
def test_it_is_listed(unseen, plugin, heading, kind, name):
    assert f'"{name}"' in unseen("list", kind, *plugin(heading), "--json")
    assert f'"{name}"' not in unseen("list", kind, "--json")


def test_a_package_registers_through_an_entry_point(unseen, tmp_path):
    page = PAGE.read_text("utf-8").partition("## As an installed package")[2]
    project = re.search(r"```toml\n(.*?)```", page, re.S)
    assert project
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(project.group(1), encoding="utf-8")
    (package / "my_schedule.py").write_text(example("Schedule"), encoding="utf-8")
    install = [
        *(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-build-isolation",
            "--no-deps",
        ),
        *("--disable-pip-version-check", "--target", str(tmp_path / "installed"), str(package)),
    ]
    subprocess.run(install, check=True, capture_output=True)
    path = os.pathsep.join([str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")])
    unseen(*TRAIN, "--schedule", "linear", "--out", "run", PYTHONPATH=path)
    assert 'schedule = "linear"' in (tmp_path / "run" / "config.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 / 0", "division by zero"),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        ("def", "invalid"),
        ("raise SystemExit('stop')", "stop"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_in_one_line(tmp_path, content, said):
    (tmp_path / "broken.py").write_text(content, encoding="utf-8")
    command = [sys.executable, "-m", "unseen", *TRAIN, "--plugin", "broken.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "broken.py" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
