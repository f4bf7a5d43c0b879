"""Predictions are those of the network itself, for files and rows alike; nothing is left out silently."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unseen.data import DataSet, Samples
from unseen.errors import UnseenError, UsageError
from unseen.serving import SavedModel, load_model, predict, predict_folder, predict_table
from unseen.serving.image_files import find_images, read_image


@pytest.fixture(scope="module")
def saved(digits_run: Path) -> SavedModel:
    return load_model(digits_run)


def direct_probabilities(saved: SavedModel, data: DataSet, rows: list[int]) -> torch.Tensor:
    batch = Samples(data, np.array(rows)).gather(torch.arange(len(rows)))
    with torch.inference_mode():
        return saved.network(saved.card.normalize(batch.inputs)).softmax(dim=1)


@pytest.mark.parametrize("batch_size", [256, 7])
def test_files_get_what_the_network_says_of_the_training_form(
    saved, digits, digit_files, batch_size: int
) -> None:
    folder, rows = digit_files
    found = predict_folder(saved, folder, batch_size=batch_size, top=10)
    assert [item.name for item in found] == sorted(rows)
    expected = direct_probabilities(saved, digits, [rows[item.name] for item in found])
    for item, probabilities in zip(found, expected, strict=True):
        assert item.label == digits.classes[int(probabilities.argmax())]
        assert [label for label, _ in item.ranked] == [
            digits.classes[i] for i in probabilities.argsort(descending=True)
        ]
        assert dict(item.ranked) == pytest.approx(
            dict(zip(digits.classes, probabilities.tolist(), strict=True)), abs=1e-6
        )
    assert len({item.label for item in found}) > 1


def test_one_file_and_the_model_file_itself(saved, digits_run: Path, digit_files) -> None:
    folder, rows = digit_files
    name = sorted(rows)[0]
    (alone,) = predict(load_model(digits_run / "model.safetensors"), folder / name)
    among = next(item for item in predict(saved, folder) if item.name == name)
    assert alone.label == among.label
    assert alone.probability == pytest.approx(among.probability, abs=1e-6)
    assert len(alone.ranked) == 1


def test_colour_becomes_grey_for_a_grey_model_only(tmp_path: Path) -> None:
    Image.new("RGB", (20, 30), (200, 100, 50)).save(tmp_path / "a.png")
    grey = read_image(tmp_path / "a.png", size=8, channels=1)
    assert grey.shape == (8, 8, 1)
    assert set(grey.ravel()) == {round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)}
    assert read_image(tmp_path / "a.png", size=8, channels=3)[0, 0].tolist() == [200, 100, 50]


def test_unreadable_files_keep_their_place(saved, tmp_path: Path) -> None:
    Image.new("L", (16, 16), 90).save(tmp_path / "b.png")
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "c.jpg").touch()
    heard: list[tuple[str, int, int]] = []
    found = predict(saved, tmp_path, batch_size=1, progress=lambda *what: heard.append(what))
    assert [(item.name, bool(item.label), bool(item.error)) for item in found] == [
        ("a.png", False, True),
        ("b.png", True, False),
        ("c.jpg", False, True),
    ]
    assert found[0].probability is None
    assert heard == [("predicting", done, 3) for done in (1, 2, 3)]


def test_search_follows_links_once_and_passes_over_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("deep/b.jpeg", "a.tif", ".hidden/c.png", "deep/notes.txt"):
        (folder / name).touch()
    (folder / "deep" / "round").symlink_to(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "d.webp").touch()
    (folder / "linked").symlink_to(other)
    found = find_images(folder)
    assert found.names == ("a.tif", "deep/b.jpeg", "linked/d.webp")
    assert found.passed_over == 1


def test_wrong_inputs_are_refused(saved, price_run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    table_model = load_model(price_run[0])
    for model, path, kind, text in (
        (saved, tmp_path / "nothing", UnseenError, "no such folder or file"),
        (saved, tmp_path / "empty", UnseenError, "no images"),
        (saved, price_run[1], UsageError, "is a table, but the model was trained on images"),
        (table_model, tmp_path, UsageError, "trained on a table; give one"),
        (table_model, tmp_path / "nothing.csv", UnseenError, "no such file"),
    ):
        with pytest.raises(kind, match=text) as caught:
            predict(model, path)
        assert type(caught.value) is kind
    with pytest.raises(UsageError, match="trained on images"):
        predict_table(saved, price_run[1])
    with pytest.raises(UsageError, match="rows of a table"):
        predict_folder(table_model, tmp_path)


def test_rows_are_predicted_in_the_unit_of_the_target(price_run) -> None:
    run, new = price_run
    saved = load_model(run)
    found = predict(saved, new, batch_size=2)
    assert [item.name for item in found] == ["1", "2", "3", "4"]
    large_house, small_flat, castle, unknown = (item.value for item in found)
    assert large_house == pytest.approx(5700, abs=150)
    assert small_flat == pytest.approx(4500, abs=150)
    assert 4500 < castle < 5700
    assert 4500 < unknown < 5700
    assert all(item.label == "" and item.probability is None for item in found)


def test_a_table_without_a_needed_column_is_refused(price_run, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("kind,sise\nflat,80\n")
    with pytest.raises(UsageError, match="size") as caught:
        predict(load_model(price_run[0]), tmp_path / "new.csv")
    assert "sise" in str(caught.value)


def test_output_that_is_no_number_is_an_error_not_a_class(saved, digit_files) -> None:
    broken = SavedModel(deepcopy(saved.network), saved.card)
    with torch.no_grad():
        broken.network.head.bias.fill_(float("nan"))
    found = predict(broken, digit_files[0])
    assert all("not a finite number" in item.error and not item.label for item in found)
