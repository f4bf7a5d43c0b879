"""Every command that README and docs show is executed, in a folder with the data that they name.

Training is shortened by options that are added at the end. What needs a network, a server or machines is
run by the test that `ELSEWHERE` names. Words in capitals stand for something of the user's, see `NAMES`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_docs import FENCE, ROOT, commands_of, python_blocks, read, shell_commands
from typer.testing import CliRunner

from made_sets import write_dicom, write_hub_parquet, write_index
from unseen.cli.main import app
from unseen.methods import METHODS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = "--rounds 1 --batches-per-epoch 1 --workers 1"
SHORTER = {
    r"train (?!--resume)": QUICK,
    r"train (pacs-hub|index.csv|hospitals|my_data)": "--effort none --image-size 12 --model mnist-cnn",
    r"train my_photos": "--image-size 32",
    r"train my_data/ .*--clients-per-domain 100": "--batch-size 1",
    r"bench (?!--out)": f"{QUICK} --seeds 1",
    r"bench (grid|GRID).toml": "--search 1 --hold-out 75 --selection source-validation --methods fedavg",
    r"advise rotated-digits": f"{QUICK} --minutes 60 --hide 0 --hide 15 --hide 30 --candidates 'FedAvg;CWT'",
    r"advise my_photos": f"{QUICK} --minutes 60 --image-size 40 --candidates 'ridge;last stage'",
    r"audit ": "--iterations 2 --clients 1 --images 1",
}
"""Options added to commands that match, as later options win."""
NAMES = {
    "--hold-out all": "--hold-out 75",
    "DATA": "rotated-digits",
    "DOMAIN": "75",
    "MODEL '[MODEL2]'": "runs/finished --data rotated-digits --domain 75",
    "MODEL": "runs/finished",
    "NEW_DATA": "rotated-digits --domain 75",
    "RUN": "runs/finished",
    "BENCH": "my_bench",
    "GRID.toml": "grid.toml",
    "DIR": "figures",
    "TOPIC": "bench",
    "list methods NAME": "list methods fedavg",
    "list aggregators NAME": "list aggregators median",
    "list averages NAME": "list averages swad",
    "list data NAME": "list data rotated-digits",
}
METHOD_PAGES = ROOT / "docs" / "methods"
TRIAL = "unseen train rotated-digits --hold-out 75"
DEPLOYED = "tests/deploy/test_commands.py::test_a_tour_from_keys_to_a_trained_model"
ELSEWHERE = {
    r"up|invite|join|accept|status|train (job|JOB).toml|train --resume --out run --coordinator": DEPLOYED,
    r"revoke": DEPLOYED,
    r"up --renew|up --host NEW --renew|join .* --rotate-key": "tests/deploy/identity/test_keys_over_time.py",
    r"approve": "tests/deploy/test_real_refusals.py",
    r"ledger verify": "tests/deploy/site/test_ledger.py",
    r"judge demo/fedavg --coordinator": "tests/deploy/test_real_judging.py",
    r"calibrate RUN": "tests/cli/test_calibrate_command.py",
    r"up --live": "tests/live/test_live_deployed.py::test_a_coordinator_brings_its_page",
    r"live FOLDER": "tests/live/test_live_process.py::test_a_run_can_be_followed_from_another_terminal",
    r"data get": "tests/cli/test_get_command.py",
    r"data check camelyon17": "tests/data/test_wilds.py",
    r"advise pacs": "tests/cli/test_advise_command.py",
    r"reproduce csac-table3 --budget": "tests/cli/test_reproduce_command.py::test_smoke_on_real_mnist",
    r"track RUN --to mlflow --server": "tests/callbacks/test_mlflow.py::test_a_real_server_gets",
    r"track RUN --to rounds-csv": "tests/extending/test_examples.py",
    r"report OUT/jobs/JOB": "tests/bench/test_bench_page.py",
    r"bench DATA --methods \.\.\.": "tests/bench/test_bench_call.py",
}
"""Commands, as regular expressions of what follows `unseen`, and the tests that run them."""


def shown_commands(page: Path) -> list[str]:
    """The commands of a page that have arguments, once each and in their order."""
    lines = [shlex.join(shlex.split(line, comments=True)) for line in commands_of(page.read_text("utf-8"))]
    mention = re.compile(r"unseen( (data|ledger))?( (?!demo)[\w-]+)?")
    return [line for line in dict.fromkeys(lines) if not mention.fullmatch(line)]


def find_test(command: str) -> str | None:
    """The test that runs a command, if it is not run here."""
    plain = command.removeprefix("unseen ")
    found = (test for words, test in ELSEWHERE.items() if re.match(rf"(?:{words})(?![\w-])", plain))
    return next(found, None)


def as_run(command: str) -> list[str]:
    """The words of a command as it is run: names filled in, shortened."""
    filled = re.sub("|".join(rf"(?<![\w./]){re.escape(name)}(?![\w./])" for name in NAMES), named, command)
    added = [options for words, options in SHORTER.items() if re.match(f"unseen {words}", filled)]
    return shlex.split(" ".join([filled, *added]))[1:]


def named(found: re.Match[str]) -> str:
    return NAMES[found[0]]


def call(words: list[str], folder: Path, expected: tuple[int, ...] = (0,)) -> str:
    """Run a command: in this process, or in one of its own if it registers parts."""
    if "--plugin" in words:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "unseen", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in expected, f"{shlex.join(words)}: {done.stderr}"
        return done.stdout
    result = CliRunner().invoke(app, words)
    said = f"{result.output}\n{result.exception!r}"
    assert result.exit_code in expected, f"unseen {shlex.join(words)}: {said}"
    return result.output


def write_photos(folder: Path, *, count: int, side: int) -> None:
    """Write SITE/CLASS/NUMBER.png for four sites and two classes."""
    generator = np.random.default_rng(0)
    for first, site in enumerate(("site_a", "site_b", "site_c", "site_d")):
        for second, label in enumerate(("cat", "dog")):
            place = folder / site / label
            place.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 90, (side, side, 3)) + np.array([50 * first, 150 * second, 0])
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:03}.png")


def write_north(folder: Path) -> None:
    """Write medical images, an index and a table with a site called `north`."""
    write_dicom(folder / "hospitals")
    (folder / "hospitals" / "sketch").rename(folder / "hospitals" / "north")
    index = write_index(folder / "indexed")
    index.write_text(index.read_text().replace("sketch", "north"))
    shutil.copytree(folder / "indexed", folder, dirs_exist_ok=True)
    rows = [
        f"{region},{number},{number % 7}.5" for region in ("north", "south", "west") for number in range(40)
    ]
    (folder / "table.csv").write_text("\n".join(["region,size,price", *rows, ""]))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: a user's data and files, and a finished run and bench."""
    folder = tmp_path_factory.mktemp("given")
    write_photos(folder / "my_data", count=75, side=12)
    write_photos(folder / "my_photos", count=12, side=40)
    shutil.copytree(folder / "my_data" / "site_d" / "cat", folder / "new_images")
    write_hub_parquet(folder / "pacs-hub")
    write_north(folder)
    (folder / "my_file.py").write_text(
        next(block for block in python_blocks(read("docs/extending.md")) if "nadam" in block)
    )
    (folder / "grid.toml").write_text(
        next(body for language, body in FENCE.findall(read("docs/bench.md")) if language == "toml")
    )
    train = ("train", "rotated-digits", "--hold-out", "75", *QUICK.split())
    call([*train, "--out", str(folder / "runs" / "finished")], folder)
    shutil.copy(folder / "runs" / "finished" / "config.toml", folder)
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `unseen demo`, which three pages start with."""
    folder = tmp_path_factory.mktemp("demo")
    said = call(["demo", "--out", str(folder / "demo")], folder)
    assert all(name in said for name in ("DeepAll", "FedAvg", "CSAC"))
    assert (folder / "demo" / "report.html").exists()
    return folder / "demo"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bench, for pages that name one without making it."""
    folder = tmp_path_factory.mktemp("bench")
    words = f"bench rotated-digits --methods fedavg,fedprox --hold-out 75 --seeds 1 {QUICK}"
    call([*words.split(), "--out", str(folder / "my_bench")], folder)
    return folder / "my_bench"


@pytest.fixture
def place(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the page's own, with what the pages take for granted."""
    for entry in given.iterdir():
        if entry.name == "runs":
            shutil.copytree(entry, tmp_path / "runs")
        else:
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, place: Path, request: pytest.FixtureRequest) -> None:
    commands = shown_commands(page)
    makes_bench = any(re.match(r"unseen bench (?!--out).* --out my_bench", line) for line in commands)
    if any("my_bench" in line for line in commands) and not makes_bench:
        shutil.copytree(request.getfixturevalue("bench"), place / "my_bench")
    for line in re.findall(r"^ssh-keygen -t .*$", page.read_text("utf-8"), re.MULTILINE):
        subprocess.run(shlex.split(line), cwd=place, check=True, capture_output=True)
    for command in commands:
        if find_test(command):
            continue
        if command == "unseen demo":
            shutil.copytree(request.getfixturevalue("demo"), place / "demo")
        else:
            call(as_run(command), place)


@pytest.mark.parametrize("name", METHODS)
def test_the_command_of_a_method_runs(name: str, place: Path) -> None:
    shown = shown_commands(METHOD_PAGES / f"{name}.md")
    commands = [line for line in shown if line.startswith(TRIAL) and f"--method {name} " in f"{line} "]
    assert commands, f"docs/methods/{name}.md shows no command"
    call([*as_run(commands[0]), "--samples-per-domain", "60"], place)
    assert list(place.glob("runs/rotated-digits-75-*/model.safetensors"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_a_command_on_included_data(page: Path) -> None:
    """Such a command stands in a block, to be copied, and needs nothing that a fresh clone does not have."""
    blocks = [
        body for language, body in FENCE.findall(page.read_text("utf-8")) if language in ("sh", "console")
    ]
    shown = [command for body in blocks for command in shell_commands(body)]
    assert any(
        re.match(r"unseen (demo|([\w-]+ )+rotated-digits|reproduce --list)", line) for line in shown
    ) or (page.stem == "python" and python_blocks(page.read_text("utf-8")))


@pytest.mark.parametrize("words", ELSEWHERE)
def test_tests_elsewhere_exist(words: str) -> None:
    file, _, name = ELSEWHERE[words].partition("::")
    assert f"def {name or 'test_'}" in read(file)
    shown = [line.removeprefix("unseen ") for page in PAGES for line in shown_commands(page)]
    assert any(re.match(words, line) for line in shown), "no page shows such a command"
