"""`unseen judge` as users meet it: tables, page, files, JSON, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unseen.config import RunConfig
from unseen.judging import load_judgement
from unseen.runner.run import run


@pytest.fixture(scope="module")
def digit_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")

    def train(rounds: int) -> Path:
        config = RunConfig(
            data="rotated-digits",
            hold_out=("75",),
            rounds=rounds,
            lr=0.05,
            batch_size=16,
            batches_per_epoch=4,
        )
        return run(config, out=folder / f"rounds{rounds}").folder

    return train(1), train(2)


def test_tables_tests_and_page_are_shown(unseen, digit_runs) -> None:
    answer = unseen("judge", *digit_runs, "--data", "rotated-digits", "--domain", "60", "--domain", "75")
    assert answer.code == 0
    for text in (
        "rounds1",
        "rounds2",
        "all sites",
        "AUROC",
        "By McNemar, p",
        "By DeLong, p",
        "judgement.html",
    ):
        assert text in answer.out
    page = Path("judgement/judgement.html").read_text(encoding="utf-8")
    found = load_judgement("judgement").values
    for text in (
        found["models"][0]["sha256"],
        "was trained on data of",
        "What left the sites",
        'name="viewport"',
    ):
        assert text in page
    assert "Group by group" not in page and "Not judged" not in page


def test_json_is_all_there_is_on_standard_output(unseen, digit_runs, tmp_path) -> None:
    out = tmp_path / "new" / "folder"
    answer = unseen(
        "judge", digit_runs[0], "--data", "rotated-digits", "--domain", "75", "--json", "--out", out
    )
    found = json.loads(answer.out)
    assert answer.code == 0 and found["page"] == str(out / "judgement.html")
    assert found["pooled"]["tests"] == [] and found["sites"].keys() == {"75"}
    assert "Is one model better" not in Path(found["page"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("RUN",), 2, "--data"),
        (("RUN", "--data", "rotated-digits", "--coordinator", "x:1"), 2, "either the data of this machine"),
        (("RUN", "--data", "missing/"), 1, "no such folder or file"),
        (("missing", "--data", "rotated-digits"), 1, "no such file or folder"),
        (("RUN", "--data", "rotated-digits", "--domain", "80"), 2, "unknown domain"),
        (("RUN", "--data", "rotated-digits", "--pixels", "unit"), 2, "are for ONNX files"),
        (("RUN", "--coordinator", "federation"), 2, "expected host:port"),
        (("RUN", "--coordinator", "127.0.0.1:1", "--min-group", "3"), 2, "every site has its own"),
    ],
)
def test_errors_are_one_line(unseen, digit_runs, words, code, text) -> None:
    answer = unseen("judge", *(digit_runs[0] if word == "RUN" else word for word in words))
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err and len(answer.err.strip().splitlines()) == 1
