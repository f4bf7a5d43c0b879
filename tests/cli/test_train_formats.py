"""Every format of images, from files in its exact layout to a trained model, and to a check with a sheet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from made_sets import (
    write_dicom,
    write_hub_parquet,
    write_index,
    write_nifti,
    write_webdataset,
)
from unseen.cli.main import app

TRAIN = (
    *("--effort", "none", "--rounds", "1", "--model", "mnist-cnn", "--image-size", "16"),
    *("--batch-size", "4", "--workers", "1"),
)
INDEX = ("--image-column", "path", "--domain-column", "hospital", "--group-column", "patient")
FORMATS = {
    "hub Parquet": (write_hub_parquet, "sketch", ()),
    "WebDataset": (write_webdataset, "sketch", ("--group-column", "patient")),
    "index CSV": (write_index, "sketch", INDEX),
    "index Parquet": (lambda folder: write_index(folder, suffix=".parquet"), "sketch", INDEX),
    "DICOM folders": (
        write_dicom,
        "sketch",
        ("--group-column", "PatientID", "--set-data", "window=900/1800"),
    ),
    "DICOM tags": (write_dicom, "sketch clinic", ("--domain-column", "InstitutionName")),
    "NIfTI": (write_nifti, "sketch", ("--set-data", "slices=2")),
}


def call(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("kind", FORMATS)
def test_from_files_to_a_model_and_to_a_sheet_of_what_the_network_sees(kind: str, tmp_path: Path) -> None:
    write, held_out, options = FORMATS[kind]
    data = str(write(tmp_path / "data"))
    found = json.loads(
        call("data", "check", data, *options, "--sheet", str(tmp_path / "sheet.png"), "--json")
    )
    assert found["ok"] and set(found["counts"]) > {held_out}
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    out = tmp_path / "run"
    call("train", data, "--hold-out", held_out, *options, *TRAIN, "--out", str(out))
    assert (out / "model.safetensors").exists()
    result = json.loads((out / "result.json").read_text())
    assert result["metrics"]["target"]["accuracy"] >= 0
    split = "by group" if "group" in " ".join(options) or "slices=2" in options else "sample"
    assert (f'split = "{split.rsplit(maxsplit=1)[-1]}"') in (out / "config.toml").read_text()
