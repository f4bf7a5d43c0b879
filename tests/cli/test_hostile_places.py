"""Pipes, foreign encodings, unwritable places and full disks: one line, a non-zero exit, nothing lost."""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from unseen.data import load_data
from unseen.data.sources import DataRequest

TRAIN = (
    "--hold-out",
    "west",
    "--rounds",
    "1",
    "--batch-size",
    "4",
    "--image-size",
    "16",
    "--method",
    "fedavg",
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for domain in ("north", "south", "west"):
        for label, level in (("cat", 60), ("dog", 180)):
            folder = tmp_path / "photos" / domain / label
            folder.mkdir(parents=True)
            for number in range(8):
                pixels = generator.integers(level - 50, level + 50, (12, 12, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def make_pipe(path: Path) -> None:
    """Make a named pipe that ends for whoever opens it: a reader fails and does not wait for ever."""

    def end_for_every_reader() -> None:
        while True:
            path.open("wb").close()

    os.mkfifo(path)
    Thread(target=end_for_every_reader, daemon=True).start()


def refused(answer, *words):
    assert answer.code != 0, answer
    lines = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in answer.err, answer.err
    assert all(word in lines[0] for word in words), lines[0]


def test_a_pipe_among_the_images_is_left_out(unseen, photos):
    """R6: a named pipe among the images made training and the check wait for ever."""
    make_pipe(photos / "north/cat/pipe.png")
    data = load_data(DataRequest(str(photos), image_size=8))
    assert len(data) == 48 and any("pipe.png" in note and "pipe, socket" in note for note in data.notes)
    assert unseen("data", "check", photos).code == 0


def test_a_pipe_is_not_predicted_for(photos):
    """R6: `predict` on a folder with a pipe."""
    from unseen.serving.image_files import find_images

    make_pipe(photos / "north/cat/pipe.png")
    found = find_images(photos)
    assert len(found.names) == 48 and found.passed_over == 1


def test_a_table_that_is_a_pipe_is_refused(unseen, tmp_path):
    """R6: the same for tables (held before)."""
    make_pipe(tmp_path / "table.csv")
    refused(unseen("train", "table.csv", "--hold-out", "a", "--out", "new"), "table.csv")


@pytest.mark.parametrize("place", ["north/caf", "n\udcf6rd"], ids=["class", "domain"])
def test_check_and_train_agree_on_names_that_are_not_utf8(unseen, photos, place):
    """R7: the check said that training can start, and training ended in a traceback."""
    source = photos / ("north/cat" if "/" in place else "north")
    source.rename(os.fsdecode(os.fsencode(photos / place) + (b"\xe9" if "/" in place else b"")))
    answer = unseen("data", "check", photos)
    assert answer.code == 1 and "would refuse" in answer.out and "not UTF-8" in answer.out, answer
    refused(unseen("train", photos, *TRAIN, "--out", "new"), "not UTF-8", "\\udc")


def test_unreadable_files_with_such_names_are_left_out(unseen, photos):
    """R7: file names go into notes and records."""
    Path(os.fsdecode(os.fsencode(photos) + b"/north/cat/\xe9.png")).write_text("no image")
    Path(os.fsdecode(os.fsencode(photos) + b"/north/cat/\xe9.txt")).write_text("no image")
    answer = unseen("train", photos, *TRAIN, "--skip-unreadable", "--out", "new", "--json")
    assert answer.code == 0, answer.err


def test_divergence_is_said_and_is_no_success(unseen, photos):
    """Section 3a: lr=1e30 ended with a loss of 1e32 and exit code 0."""
    answer = unseen("train", photos, *TRAIN, "--lr", "1e30", "--out", "new")
    assert answer.code == 1 and "error: " in answer.err and "--lr" in answer.err, answer


def test_formulas_do_not_reach_a_spreadsheet(unseen, photos, tmp_path):
    """Section 3a: a file named =HYPERLINK(1).png reached the CSV cell as it is."""
    assert unseen("train", photos, *TRAIN, "--out", "run").code == 0
    images = tmp_path / "new"
    images.mkdir()
    for name in ("=HYPERLINK(1).png", "+1.png", "-1.png", "@x.png", "plain.png"):
        Image.new("RGB", (8, 8)).save(images / name)
    assert unseen("predict", "run", images, "--out", "p.csv").code == 0
    with (tmp_path / "p.csv").open(newline="") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    assert sorted(names) == ["'+1.png", "'-1.png", "'=HYPERLINK(1).png", "'@x.png", "plain.png"]
    refused(unseen("predict", "run", images, "--out", "/proc/x.csv"), "/proc/x.csv")
    refused(unseen("predict", "run", images, "--out", tmp_path / ("x" * 300)), "too long")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html" / "inside").mkdir(parents=True)
    refused(unseen("report", "run"), "could not write", "report.html")


@pytest.mark.parametrize("command", ["train", "bench"])
def test_a_name_that_is_too_long_is_refused(unseen, photos, command):
    """Section 3a: a very long --out ended in a traceback."""
    options = (
        (*TRAIN, "--out") if command == "train" else ("--hold-out", "west", "--methods", "fedavg", "--out")
    )
    refused(unseen(command, photos, *options, "x" * 300), "too long")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_report_into_a_folder_of_someone_else_is_refused(unseen, photos, tmp_path):
    """R5: an unwritable report folder."""
    assert unseen("train", photos, *TRAIN, "--out", "run").code == 0
    (tmp_path / "run").chmod(0o500)
    try:
        refused(unseen("report", "run"), "could not write")
    finally:
        (tmp_path / "run").chmod(0o700)


@pytest.mark.parametrize("limit", [1_000, 40_000, 400_000])
def test_a_full_disk_ends_a_run_in_one_line(photos, tmp_path, limit):
    """R4: a file-size limit, as a full disk, raised SafetensorError; what is there stays."""
    code = (
        "import resource, signal, sys\n"
        "from unseen.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "train", str(photos), *TRAIN, "--out", "run"]
    environment = {**os.environ, "UNSEEN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: could not write")]
    assert not list((tmp_path / "run").rglob(".*.part*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit
