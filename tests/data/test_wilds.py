"""The WILDS sets on small made-up copies of their official releases: metadata, files, splits, groups."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unseen import train
from unseen.config import RunConfig
from unseen.data import SOURCES, DataRequest, DataSet, list_sources, load_data
from unseen.data.benchmarks.povertymap import (
    DOMAINS,
    TEST_COUNTRIES,
    TRAINING_COUNTRIES,
    VALIDATION_COUNTRIES,
)
from unseen.errors import UnseenError, UsageError
from unseen.runs.folder import default_folder
from unseen.serving import export_model, load_model
from unseen.serving.predict import predict_folder

REGIONS = {"KEN": "Africa", "FRA": "Europe", "JPN": "Asia", "ATA": ""}
CATEGORIES = ("airport", "zoo")


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def write_image(path: Path, shade: int, side: int = 12) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(path)


def make_camelyon17(root: Path, *, each: int = 6) -> None:
    """`each` patches of both classes in every hospital; the shade tells hospital and class apart."""
    folder, rows = root / "camelyon17_v1.0", []
    for center in range(5):
        for number in range(2 * each):
            tumor, patient, x = number % 2, f"{center:03d}", 32 * number
            slide = f"patient_{patient}_node_{center}"
            write_image(
                folder / "patches" / slide / f"patch_{slide}_x_{x}_y_64.png", 40 * center + 20 * tumor
            )
            rows.append((len(rows), patient, center, x, 64, tumor, 10 * center, center, 0))
    columns = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
    write_csv(folder / "metadata.csv", columns, rows)


def make_fmow(root: Path, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Rows of (split, category, country code, year); the shade of a picture is its row."""
    folder = root / "fmow_v1.1"
    stamped = [(*row[:3], f"{row[3]}-06-01T08:15:10Z") for row in rows]
    write_csv(folder / "rgb_metadata.csv", ("split", "category", "country_code", "timestamp"), stamped)
    write_csv(
        folder / "country_code_mapping.csv",
        ("name", "alpha-3", "region"),
        [("", *pair) for pair in REGIONS.items()],
    )
    for number, row in enumerate(rows):
        if row[0] != "seq":
            write_image(folder / "images" / f"rgb_img_{number}.png", number)


def make_povertymap(root: Path, *, each: int = 4, side: int = 16) -> None:
    """`each` villages of every domain; wealth is a channel's mean, noisily in the countryside."""
    folder, rows = root / "poverty_v1.1", []
    draw = np.random.default_rng(0)
    for domain in DOMAINS:
        country, _, kind = domain.rpartition("-")
        for _ in range(each):
            values = draw.normal(size=(8, side, side)).astype(np.float32)
            values[2] += (wealth := draw.normal())
            path = folder / "images" / f"landsat_poverty_img_{len(rows)}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, x=values)
            noise = draw.normal() if kind == "rural" else 0.0
            rows.append((country, 2012, wealth + noise, kind == "urban", 1.5))
    write_csv(folder / "dhs_metadata.csv", ("country", "year", "wealthpooled", "urban", "nl_mean"), rows)


def load(name: str, root: Path, **options) -> DataSet:
    return load_data(DataRequest(name, root=root, **options))


def message(name: str, root: Path, **options) -> str:
    with pytest.raises(UnseenError) as caught:
        load(name, root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestCamelyon17:
    def test_patches_hospitals_and_classes(self, tmp_path):
        make_camelyon17(tmp_path)
        data = load("camelyon17", tmp_path)
        assert data.input_shape == (3, 96, 96)
        assert data.domains == data.groups == tuple(f"hospital_{number}" for number in range(5))
        assert data.classes == ("normal", "tumor")
        np.testing.assert_array_equal(data.group_of, data.domain_of)
        np.testing.assert_array_equal(data.inputs[:, 50, 50, 0], 40 * data.domain_of + 20 * data.targets)

    def test_its_own_split_is_the_default(self):
        config = RunConfig.from_mapping({"data": "camelyon17"})
        assert config.hold_out == ("hospital_2",)
        assert config.validate_on == ("hospital_1",)
        assert config.selection == "validation-domains"
        named = RunConfig.from_mapping({"data": "camelyon17", "hold_out": "hospital_0"})
        assert (named.validate_on, named.selection) == ((), "source-validation")

    def test_training_sees_three_hospitals_only(self, tmp_path):
        make_camelyon17(tmp_path)
        options = {"rounds": 1, "batch_size": 4, "model": "mnist-cnn", "image_size": 12, "workers": 1}
        result = train("camelyon17", data_root=str(tmp_path), out=tmp_path / "run", **options).values
        assert result["held_out"] == ["hospital_2"]
        assert result["validate_on"] == ["hospital_1"]
        assert result["metrics"]["worst_group"]["group"] == "hospital_2"
        start = json.loads((tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert [client["name"] for client in start["clients"]] == ["hospital_0", "hospital_3", "hospital_4"]

    def test_a_missing_patch_is_named_and_may_be_left_out(self, tmp_path):
        make_camelyon17(tmp_path)
        lost = tmp_path / "camelyon17_v1.0/patches/patient_001_node_1/patch_patient_001_node_1_x_32_y_64.png"
        lost.unlink()
        text = message("camelyon17", tmp_path)
        assert lost.name in text
        assert "1 of 60 files" in text
        data = load("camelyon17", tmp_path, skip_unreadable=True)
        assert len(data) == 59
        np.testing.assert_array_equal(data.inputs[:, 50, 50, 0], 40 * data.domain_of + 20 * data.targets)
        assert "left out: 1 of 60" in data.notes[0]

    @pytest.mark.parametrize(("column", "value"), [("center", "7"), ("tumor", "maybe")])
    def test_metadata_of_another_kind(self, column, value, tmp_path):
        make_camelyon17(tmp_path, each=1)
        path = tmp_path / "camelyon17_v1.0" / "metadata.csv"
        lines = [line.split(",") for line in path.read_text().splitlines()]
        lines[3][lines[0].index(column)] = value
        path.write_text("\n".join(",".join(line) for line in lines))
        assert "not the released metadata" in message("camelyon17", tmp_path)
        path.write_text(path.read_text().replace(column, "other"))
        assert f"no column {column}" in message("camelyon17", tmp_path)


class TestFmow:
    ROWS = (
        ("train", "zoo", "KEN", "2002"),
        ("val", "airport", "FRA", "2012"),
        ("test", "zoo", "JPN", "2007"),
        ("train", "zoo", "FRA", "2013"),  # not used: of that year only `val` is
        ("val", "zoo", "FRA", "2014"),
        ("test", "airport", "ATA", "2016"),  # no region
        ("seq", "zoo", "KEN", "2016"),  # sequestered
        ("val", "zoo", "KEN", "2017"),  # not used: of that year only `test` is
        ("test", "zoo", "XXX", "2017"),  # unknown country
        ("test", "zoo", "KEN", "2017"),
    )
    USED = (0, 1, 2, 4, 5, 8, 9)

    def test_rows_years_and_regions(self, tmp_path):
        make_fmow(tmp_path, self.ROWS)
        data = load("fmow", tmp_path, image_size=8)
        assert data.inputs[:, 4, 4, 0].tolist() == list(self.USED)
        years = [data.domains[number] for number in data.domain_of]
        assert years == [self.ROWS[row][3] for row in self.USED]
        assert data.classes == CATEGORIES
        assert [data.classes[number] for number in data.targets] == [self.ROWS[row][1] for row in self.USED]
        regions = ["" if number < 0 else data.groups[number] for number in data.group_of]
        assert regions == ["Africa", "Europe", "Asia", "Europe", "", "", "Africa"]

    def test_its_own_split_is_the_default(self):
        config = RunConfig.from_mapping({"data": "fmow"})
        assert config.hold_out == ("2016", "2017")
        assert config.validate_on == ("2013", "2014", "2015")

    def test_the_worst_region_is_told(self, tmp_path):
        rows = [
            (split, category, country, year)
            for split, years in (
                ("train", ("2010", "2011")),
                ("val", ("2013", "2014", "2015")),
                ("test", ("2016", "2017")),
            )
            for year in years
            for country in ("KEN", "FRA", "ATA")
            for category in CATEGORIES * 3
        ]
        make_fmow(tmp_path, rows)
        options = {"rounds": 1, "batch_size": 4, "model": "mnist-cnn", "image_size": 8, "workers": 1}
        result = train("fmow", data_root=str(tmp_path), out=tmp_path / "run", **options).values
        assert set(result["target_domains"]) == {"2016", "2017"}
        assert result["metrics"]["worst_group"]["group"] in ("Africa", "Europe")
        assert {"pooled_accuracy", "worst_group_accuracy"} <= set(result["metrics"]["validation_domains"])

    def test_without_the_countries(self, tmp_path):
        make_fmow(tmp_path, self.ROWS)
        (tmp_path / "fmow_v1.1" / "country_code_mapping.csv").unlink()
        assert "country_code_mapping.csv" in message("fmow", tmp_path)


@pytest.fixture(scope="module")
def trained_on_poverty(tmp_path_factory):
    root = tmp_path_factory.mktemp("poverty")
    make_povertymap(root)
    options = {
        "rounds": 3,
        "batch_size": 2,
        "lr": 0.005,
        "model": "mnist-cnn",
        "image_size": 16,
        "workers": 1,
    }
    return train("povertymap", data_root=str(root), out=root / "run", **options), root


class TestPovertyMap:
    def test_values_arrive_as_they_are(self, tmp_path):
        make_povertymap(tmp_path, each=1)
        data = load("povertymap", tmp_path, image_size=16)
        assert data.task == "regression"
        assert data.is_measured
        assert data.inputs.shape == (46, 16, 16, 8)
        assert data.inputs.dtype == np.float32
        assert data.domains == tuple(sorted(DOMAINS))
        assert data.groups == ("rural", "urban")
        for row in (0, 17, 45):
            with np.load(tmp_path / "poverty_v1.1" / "images" / f"landsat_poverty_img_{row}.npz") as arrays:
                np.testing.assert_array_equal(data.inputs[row], arrays["x"].transpose(1, 2, 0))
        kinds = [data.groups[number] for number in data.group_of]
        assert kinds == [data.domains[number].rpartition("-")[2] for number in data.domain_of]
        assert load("povertymap", tmp_path, image_size=16).fingerprint == data.fingerprint

    def test_shrinking_averages(self, tmp_path):
        make_povertymap(tmp_path, each=1)
        whole, half = (load("povertymap", tmp_path, image_size=size).inputs for size in (16, 8))
        assert half.shape == (46, 8, 8, 8)
        np.testing.assert_allclose(half.mean(axis=(1, 2)), whole.mean(axis=(1, 2)), atol=0.15)
        assert half.std() < whole.std()

    def test_countries_are_split_as_in_fold_a(self):
        config = RunConfig.from_mapping({"data": "povertymap"})
        roles = [
            {domain.rpartition("-")[0] for domain in part} for part in (config.hold_out, config.validate_on)
        ]
        assert roles == [set(TEST_COUNTRIES), set(VALIDATION_COUNTRIES)]
        assert len(DOMAINS) == 46
        assert len(TRAINING_COUNTRIES) == 13
        assert len(config.hold_out) == len(config.validate_on) == 10

    def test_training_tells_average_and_worst_correlation(self, trained_on_poverty):
        result, root = trained_on_poverty
        target = result.metrics["target"]
        assert {"pooled_pearson_r", "worst_group_pearson_r"} <= set(target)
        assert result.metrics["worst_group"]["group"] in ("rural", "urban")
        assert result.metrics["worst_group"]["pearson_r"] == target["worst_group_pearson_r"]
        data = load("povertymap", root, image_size=16)
        rows = np.concatenate([data.indices(domain) for domain in result.values["held_out"]])
        inputs = torch.from_numpy(data.inputs[rows]).permute(0, 3, 1, 2)
        predicted = result.model.outputs(inputs)[:, 0].numpy()
        by_hand = {
            kind: np.corrcoef(predicted[chosen], data.targets[rows][chosen])[0, 1]
            for kind, chosen in (
                ("all", data.group_of[rows] >= 0),
                ("rural", data.group_of[rows] == 0),
                ("urban", data.group_of[rows] == 1),
            )
        }
        assert target["pooled_pearson_r"] == pytest.approx(by_hand["all"], abs=1e-5)
        assert target["worst_group_pearson_r"] == pytest.approx(
            min(by_hand["rural"], by_hand["urban"]), abs=1e-5
        )

    def test_a_run_folder_has_a_name_of_bearable_length(self):
        config = RunConfig.from_mapping({"data": "povertymap"})
        assert default_folder(config, resume=False).name == (
            "povertymap-angola-rural-angola-urban-cote_d_ivoire-rural-7-more-fedavg-0"
        )

    def test_the_model_is_served_with_measured_values(self, trained_on_poverty):
        result, root = trained_on_poverty
        saved = load_model(result.folder)
        assert saved.card.measured
        exported = export_model(result.folder)
        assert exported.facts["check"]["largest_difference"] < 1e-4
        assert "measured values" in exported.facts["input"]["values"]
        with pytest.raises(UnseenError, match="measured values"):
            predict_folder(saved, root)

    def test_they_are_not_augmented(self, tmp_path):
        make_povertymap(tmp_path, each=1)
        with pytest.raises(UsageError, match="--augment none"):
            train(
                "povertymap", data_root=str(tmp_path), out=tmp_path / "run", augment="standard", batch_size=1
            )

    @pytest.mark.parametrize("content", [b"", b"text", "shape", "key", "nan"])
    def test_a_broken_file_is_named(self, content, tmp_path):
        make_povertymap(tmp_path, each=1)
        path = tmp_path / "poverty_v1.1" / "images" / "landsat_poverty_img_7.npz"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            values = np.full((8, 16, 16), np.nan if content == "nan" else 0, np.float32)
            np.savez(path, **{"y" if content == "key" else "x": values[:3] if content == "shape" else values})
        assert "landsat_poverty_img_7.npz" in message("povertymap", tmp_path, image_size=16)

    def test_metadata_of_another_kind(self, tmp_path):
        make_povertymap(tmp_path, each=1)
        path = tmp_path / "poverty_v1.1" / "dhs_metadata.csv"
        path.write_text(path.read_text().replace("True", "perhaps"))
        assert "not the released metadata" in message("povertymap", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("camelyon17", "camelyon17_v1.0"), ("fmow", "fmow_v1.1"), ("povertymap", "poverty_v1.1")],
)
def test_what_to_do_without_files(name, folder, tmp_path, monkeypatch):
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    assert f"{folder}/" in message(name, tmp_path)
    assert SOURCES[name].present_domains(tmp_path) == ()
    obtain = SOURCES[name].acquisition
    assert obtain is not None
    assert f"get_dataset('{folder.partition('_')[0]}'" in obtain.where


def test_default_roles_name_domains_that_exist():
    for name, source in list_sources():
        known = set(DOMAINS) if name == "povertymap" else set(source.domains.split(", "))
        assert {*source.hold_out, *source.validate_on} <= known
        assert not {*source.hold_out} & {*source.validate_on}
