"""`unseen predict` and `unseen export` as users meet them: what goes where, and exit codes."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from unseen.cli import progress
from unseen.config import RunConfig
from unseen.data import DataRequest, load_data
from unseen.runner.run import run
from unseen.serving import load_model, predict


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(data="rotated-digits", hold_out=("75",), rounds=1, batch_size=16, batches_per_epoch=3)
    return run(config, out=tmp_path_factory.mktemp("runs") / "digits").folder


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression on a table, scaled by each domain's own values."""
    folder = tmp_path_factory.mktemp("table")
    values = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{'abc'[row % 3]},{x:.3f},{100 + y:.3f}" for row, (x, y) in enumerate(values)]
    (folder / "t.csv").write_text("\n".join(["domain,x,target", *lines]) + "\n")
    config = RunConfig(
        data=str(folder / "t.csv"), hold_out=("c",), rounds=1, batch_size=8, table_statistics="local"
    )
    return run(config, out=folder / "run").folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    data = load_data(DataRequest("rotated-digits"))
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    for row in range(0, 40, 8):
        Image.fromarray(data.inputs[row, ..., 0]).save(folder / "a" / f"{row:02}.png")
    return folder


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_goes_to_standard_output_and_the_summary_to_the_eye(
    unseen, digits_run: Path, pictures: Path
) -> None:
    (pictures / "broken [x].png").write_text("no image")
    (pictures / "notes.txt").touch()
    answer = unseen("predict", digits_run, pictures)
    assert answer.code == 0
    rows = rows_of(answer.out)
    doubt = ["calibrated", "set", "distance", "unusual"]
    assert list(rows[0]) == ["file", "class", "probability", *doubt, "error"]
    assert rows[0]["class"] in rows[0]["set"].split("|") and float(rows[0]["distance"]) > 0
    assert rows[0]["unusual"] in {"yes", "no"} and all(rows[-1][name] == "" for name in doubt)
    assert [row["file"] for row in rows] == [f"a/{row:02}.png" for row in range(0, 40, 8)] + [
        "broken [x].png"
    ]
    expected = predict(load_model(digits_run), pictures)
    assert [row["class"] for row in rows] == [item.label for item in expected]
    assert float(rows[0]["probability"]) == pytest.approx(expected[0].probability, abs=1e-5)
    assert rows[-1]["class"] == rows[-1]["probability"] == ""
    assert "not an image" in rows[-1]["error"]
    assert "broken [x].png: not an image" in answer.err
    assert "not an image by its name: 1 files" in answer.err
    assert "mean probability" in answer.err


def test_more_columns_on_request(unseen, digits_run: Path, pictures: Path, tmp_path: Path) -> None:
    expected = predict(load_model(digits_run), pictures, top=10)[0]
    answer = unseen("predict", digits_run, pictures, "--top", "2")
    first = rows_of(answer.out)[0]
    assert (first["class"], first["class_2"]) == (expected.ranked[0][0], expected.ranked[1][0])
    assert float(first["probability_2"]) == pytest.approx(expected.ranked[1][1], abs=1e-5)
    place = tmp_path / "new" / "out.csv"
    answer = unseen("predict", digits_run, pictures, "--all-probabilities", "--out", place)
    assert (answer.code, answer.out) == (0, f"Predictions: {place}\n")
    first = rows_of(place.read_text())[0]
    assert [float(first[f"p_{digit}"]) for digit in range(10)] == pytest.approx(
        [dict(expected.ranked)[str(digit)] for digit in range(10)], abs=1e-5
    )


def test_json_is_all_there_is_on_standard_output(unseen, digits_run: Path, pictures: Path) -> None:
    (pictures / "z.png").touch()
    answer = unseen("predict", digits_run, pictures, "--json", "--top", 3, "--batch-size", 2)
    found = json.loads(answer.out)
    assert answer.code == 0
    assert found["task"] == "classification"
    assert [set(item) for item in found["predictions"]] == [
        {"file", "class", "probability", "calibrated", "set", "distance", "unusual", "ranked"}
    ] * 5 + [{"file", "error"}]
    assert len(found["predictions"][0]["ranked"]) == 3


def test_nothing_readable_is_a_failure_that_still_lists_the_files(
    unseen, digits_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_text("no image")
    answer = unseen("predict", digits_run, tmp_path)
    assert answer.code == 1
    assert [row["file"] for row in rows_of(answer.out)] == ["a.png"]
    assert "error: " in answer.err


def test_file_names_that_are_no_text(unseen, digits_run: Path, pictures: Path) -> None:
    (pictures / "a" / "00.png").rename(pictures / "a" / "odd\udcff.png")
    for options in ((), ("--json",)):
        answer = unseen("predict", digits_run, pictures, *options)
        assert answer.code == 0
        assert "odd\\" in answer.out
        assert answer.out.encode("utf-8").decode() == answer.out


def test_rows_of_a_table(unseen, table_run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x\n-1\n0\n1\n")
    answer = unseen("predict", table_run, tmp_path / "new.csv")
    assert answer.code == 0
    rows = rows_of(answer.out)
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    assert [float(row["prediction"]) for row in rows] == pytest.approx([100] * 3, abs=5)
    assert "its rows should come from one domain" in answer.err
    answer = unseen("predict", table_run, tmp_path / "new.csv", "--json")
    assert [item["row"] for item in json.loads(answer.out)["predictions"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("predict", "RUN", "missing"), 1, "no such folder or file"),
        (("predict", "missing", "PICTURES"), 1, "no such file or folder"),
        (("predict", "PICTURES", "PICTURES"), 1, "no finished run"),
        (("predict", "RUN", "t.csv"), 2, "is a table"),
        (("predict", "RUN", "PICTURES", "--device", "toaster"), 2, "is not available here"),
        (("predict", "RUN", "PICTURES", "--batch-size", "0"), 2, "batch-size"),
        (("export", "RUN", "--to", "onix"), 2, "Did you mean 'onnx'"),
        (("export", "PICTURES"), 1, "no finished run"),
    ],
)
def test_errors_are_one_line(unseen, digits_run, pictures, tmp_path, words, code, text) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n")
    named = {"RUN": digits_run, "PICTURES": pictures}
    answer = unseen(*(named.get(word, word) for word in words))
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err
    assert "Traceback" not in answer.err


def test_export_says_what_it_wrote_and_how_it_checked(unseen, table_run: Path, tmp_path: Path) -> None:
    answer = unseen("export", table_run, "--out", tmp_path / "model.onnx")
    assert (answer.code, answer.err) == (0, "")
    assert f"Model: {tmp_path / 'model.onnx'}" in answer.out
    assert "largest difference to the trained model" in answer.out
    answer = unseen("export", table_run, "--to", "safetensors", "--json")
    found = json.loads(answer.out)
    assert (answer.code, answer.err) == (0, "")
    assert Path(found["file"]).is_file()
    assert json.loads(Path(found["description"]).read_text())["run_id"] == found["run_id"]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_appears_only_for_long_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    def drawn(patience: float) -> str:
        monkeypatch.setattr(progress, "PATIENCE", patience)
        screen = io.StringIO()
        with progress.DelayedProgressBar(Console(file=screen, force_terminal=terminal, width=100)) as bar:
            bar("predicting", 1, 3)
            bar("predicting", 3, 3)
        return screen.getvalue()

    assert drawn(3600.0) == ""
    assert ("predicting" in drawn(-1.0)) is terminal
