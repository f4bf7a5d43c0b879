"""`unseen check-site` as users meet it: verdict, table, page, JSON, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.config import RunConfig
from unseen.runner.run import run
from unseen.serving import load_model, predict


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(data="rotated-digits", hold_out=("75",), rounds=1, batch_size=16, batches_per_epoch=3)
    return run(config, out=tmp_path_factory.mktemp("runs") / "digits").folder


def test_the_table_is_printed_and_the_page_shows_the_extremes(unseen, digits_run: Path) -> None:
    answer = unseen("check-site", digits_run, "rotated-digits", "--domain", "75")
    assert answer.code == 0
    assert "expected accuracy" in answer.out and "measured accuracy" in answer.out
    page = Path("site-check.html").read_text()
    pictures, maps = page.count("data:image/png;base64,"), page.count('alt="attribution map of')
    assert maps > 0 and pictures == 12 + maps and "Least usual" in page and "Grad-CAM" in page
    assert answer.out.splitlines()[0] in page.lower() and 'name="viewport"' in page


def test_json_is_all_there_is_on_standard_output(unseen, digits_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 255, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"<b>{number:02}.png")
    (folder / "broken.png").write_text("no image")
    page = tmp_path / "new" / "page.html"
    answer = unseen("check-site", digits_run, folder, "--json", "--out", page)
    found = json.loads(answer.out)
    assert answer.code == 0 and found["page"] == str(page)
    assert (found["samples"], found["failed"], found["accuracy"]) == (24, 1, None)
    assert found["verdict"] in {"fit for use", "use with care", "do not use"} and found["reasons"]
    predicted = {item.name: item.distance for item in predict(load_model(digits_run), folder)}
    assert found["least_usual"][0]["distance"] == pytest.approx(max(filter(None, predicted.values())))
    assert "<b>" not in page.read_text().partition("<body>")[2]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("RUN", "missing"), 1, "no such folder or file"),
        (("missing", "rotated-digits"), 1, "no such file or folder"),
        (("RUN", "rotated-digits", "--domain", "80"), 2, "has no such domain"),
        (("RUN", "."), 1, "no images"),
        (("RUN", "t.csv"), 2, "is a table"),
    ],
)
def test_errors_are_one_line(unseen, digits_run: Path, words, code, text) -> None:
    Path("t.csv").write_text("x\n1\n")
    answer = unseen("check-site", *(digits_run if word == "RUN" else word for word in words))
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err and len(answer.err.strip().splitlines()) == 1
