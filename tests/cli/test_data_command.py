"""`unseen data check`: a table of counts, every unreadable file, and whether training would start."""

import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from unseen.cli.data_command import counts_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites; `site b` has no dog."""
    root = tmp_path / "my data"
    for number, (domain, label, count) in enumerate(
        (("site a", "cat", 4), ("site a", "dog", 2), ("site b", "cat", 3))
    ):
        (root / domain / label).mkdir(parents=True)
        for i in range(count):
            colour = np.full((6, 6, 3), 20 * number + i, np.uint8)
            Image.fromarray(colour).save(root / domain / label / f"{i}.png")
    return root


def row_of(domain: str, out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.strip().startswith(f"{domain} ")]
    return line


def line_with(text: str, out: str) -> str:
    (line,) = [line for line in out.splitlines() if text in line]
    return line


def test_counts_with_missing_combinations_marked(unseen, folder: Path) -> None:
    answer = unseen("data", "check", folder)
    assert (answer.code, answer.err) == (0, "")
    assert "my data: 9 samples" in answer.out
    first, second = (row_of(name, answer.out) for name in ("site a", "site b"))
    assert "none" in second
    assert "none" not in first
    assert [word for word in second.split() if word.isdigit()] == ["3", "3"]
    assert first.count("█") > second.count("█") > 0
    assert "warning: class dog is in domain site a only" in answer.out
    command = line_with("Training can start", answer.out).split("example: ")[1]
    assert shlex.split(command) == ["unseen", "train", str(folder), "--hold-out", "site b"]


def test_every_unreadable_file_is_listed_and_training_refused(unseen, folder: Path) -> None:
    for number in range(30):
        (folder / "site a" / "cat" / f"[bad] {number}.png").write_text("no image")
    Image.new("L", (6, 6)).save(folder / "site b" / "cat" / "grey1.png")
    Image.new("L", (6, 6), 9).save(folder / "site b" / "cat" / "grey2.png")
    answer = unseen("data", "check", folder)
    assert answer.code == 1
    assert sum(line.startswith("unreadable: site a/cat/[bad] ") for line in answer.out.splitlines()) == 30
    assert "converted on reading: 2 with grey, for example site b/cat/grey1.png" in answer.out
    assert "30 unreadable (--skip-unreadable leaves them out)" in answer.out


@pytest.mark.parametrize("which", ["domain", "class", "image"])
def test_what_training_refuses_is_exit_code_1(unseen, tmp_path: Path, which: str) -> None:
    for domain, label in {"domain": ("ax", "ay"), "class": ("ax", "bx"), "image": ()}[which]:
        (tmp_path / domain / label).mkdir(parents=True)
        Image.new("RGB", (6, 6)).save(tmp_path / domain / label / "0.png")
    answer = unseen("data", "check", tmp_path)
    assert (answer.code, answer.err) == (1, "")
    assert f"Training would refuse this data: {tmp_path}:" in answer.out
    answer = unseen("train", tmp_path, "--hold-out", "a")
    assert answer.code == 1


def test_json_is_all_there_is_on_standard_output(unseen, folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "counts.png"
    (folder / "site a" / "cat" / "bad.png").touch()
    answer = unseen("data", "check", folder, "--json", "--picture", picture)
    found = json.loads(answer.out)
    assert (answer.code, answer.err) == (1, "")
    assert found["counts"]["site b"] == {"cat": 3, "dog": 0}
    assert list(found["unreadable"]) == ["site a/cat/bad.png"]
    assert (found["ok"], found["picture"]) == (False, str(picture))
    with Image.open(picture) as drawn:
        assert drawn.format == "PNG"
        assert drawn.width > 600


def test_a_table_and_its_own_columns(unseen, tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    rows = [f"{'ns'[row % 2]},{row},{row * 1.5}" for row in range(40)]
    table.write_text("\n".join(["place,size,price", *rows]) + "\n")
    columns = ("--domain-column", "place", "--target", "price")
    answer = unseen("data", "check", table, *columns, "--picture", tmp_path / "p.png")
    assert answer.code == 0
    assert "prices: 40 samples" in answer.out
    assert [word for word in row_of("n", answer.out).split() if word.isdigit()] == ["20"]
    assert f"Picture: {tmp_path / 'p.png'}" in answer.out
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert shlex.join(columns) in line_with("Training can start", answer.out)


def test_a_named_set(unseen) -> None:
    answer = unseen("data", "check", "rotated-digits")
    assert answer.code == 0
    assert "rotated-digits: 1797 samples" in answer.out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("rotated-digit",), 2, "Did you mean 'rotated-digits'"),
        (("./nowhere",), 1, "no such folder or file"),
        (("t.csv",), 2, "--domain-column"),
        (("t.csv", "--task", "regresion"), 2, "Did you mean 'regression'"),
        (("rotated-digits", "--picture", "counts.svg"), 2, "must end in .png"),
    ],
)
def test_errors_are_one_line(unseen, tmp_path: Path, words, code, text) -> None:
    (tmp_path / "t.csv").write_text("a,target\n1,2\n")
    answer = unseen("data", "check", *words)
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err
    assert len(answer.err.splitlines()) == 1


def shown(counts: dict[str, dict[str, int]], width: int) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    console.print(counts_table(counts, console))
    return screen.getvalue()


def test_many_classes_give_way_to_extremes() -> None:
    counts = {
        "a": {f"kind {i:02}": 10 + i for i in range(40)},
        "b": {f"kind {i:02}": 0 if i in (3, 5) else 50 - i for i in range(40)},
    }
    text = shown(counts, 140)
    assert "10 (kind 00)" in text
    assert "49 (kind 39)" in text
    assert "2 of 40: kind 03, kind 05" in text
    assert "11 (kind 39)" in text
    assert max(map(len, text.splitlines())) <= 140


def test_the_table_adapts_to_a_narrow_screen() -> None:
    counts = {"a": {f"class {i}": 5 for i in range(9)}, "b": {f"class {i}": 6 for i in range(9)}}
    assert "class 8" in shown(counts, 160)
    narrow = shown(counts, 79)
    assert "smallest class" in narrow
    assert max(map(len, narrow.splitlines())) <= 79


def test_a_release_s_own_split_and_groups_are_shown(unseen, tmp_path: Path) -> None:
    folder = tmp_path / "camelyon17_v1.0"
    rows = ["row,patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for center in range(5):
        for tumor in (0, 1):
            slide = f"patient_00{center}_node_0"
            (folder / "patches" / slide).mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(np.zeros((6, 6, 3), np.uint8))
            picture.save(folder / "patches" / slide / f"patch_{slide}_x_{tumor}_y_0.png")
            rows.append(f"{len(rows)},00{center},0,{tumor},0,{tumor},{center},{center},0")
    (folder / "metadata.csv").write_text("\n".join(rows), encoding="utf-8")
    answer = unseen("data", "check", "camelyon17", "--data-root", tmp_path)
    assert answer.code == 0
    assert "held out unless you name others: hospital_2" in answer.out
    assert "kept to choose the round: hospital_1" in answer.out
    assert "groups, of which the worst is reported: hospital_0, hospital_1" in answer.out
    assert line_with("Training can start", answer.out).endswith("example: unseen train camelyon17")
    told = json.loads(unseen("data", "check", "camelyon17", "--data-root", tmp_path, "--json").out)
    assert told["hold_out"] == ["hospital_2"]
    assert told["validate_on"] == ["hospital_1"]


def test_a_sheet_shows_clean_and_augmented_images(unseen, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "sheet.png"
    answer = unseen(
        "data", "check", folder, "--sheet", file, "--augment", "crop+mixstyle", "--image-size", "40"
    )
    assert answer.code == 0
    assert f"Sheet: {file} (40 pixels, --augment crop+mixstyle)" in answer.out.replace("\n", "")
    assert "acts inside the network: mixstyle" in answer.out
    with Image.open(file) as sheet:
        assert sheet.size == (150 + 7 * (80 + 6) + 6, 2 * 18 + 6 + 4 * (80 + 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--augment", "crop"), "--sheet FILE.png"),
        (("--sheet", "a.jpg"), "--sheet a.jpg must end in .png"),
        (("--sheet", "a.png", "--augment", "cropp"), "unknown augmentation 'cropp'"),
    ],
)
def test_wrong_options_of_a_sheet_are_refused(unseen, folder: Path, options, message: str) -> None:
    answer = unseen("data", "check", folder, *options)
    assert answer.code == 2
    assert message in answer.err.replace("\n", " ")
