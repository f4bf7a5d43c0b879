"""Data sets from Python, saved as a folder of arrays: other processes map them, and later calls find them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unseen.data.dataset import Column, DataSet
from unseen.data.formats import FORMATS, DataFormat
from unseen.errors import UnseenError
from unseen.fileio import write_json

_ABOUT = "dataset.json"
_ARRAYS = ("inputs", "targets", "domain_of", "group_of", "split_group_of")


@FORMATS.register("saved-arrays")
class SavedArrays(DataFormat):
    """Folders that `unseen.bench` writes for a data set from Python."""

    expects = f"a data set saved from Python (a folder with {_ABOUT})"
    contents = "arrays"
    priority = 100
    group_options = ()

    def matches(self, path: Path) -> bool:
        """Match folders by their description."""
        return (path / _ABOUT).is_file()

    def load(self, request: Any) -> DataSet:
        """Map the arrays; damaged ones are refused."""
        return load_arrays(request.path)


def save_arrays(data: DataSet, folder: Path) -> Path:
    """Save a data set below `folder`, under its name and its fingerprint; return the path."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in data.name)
    place = folder / f"{name}-{data.fingerprint}"
    if (place / _ABOUT).exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    for array in _ARRAYS:
        if (values := getattr(data, array)) is not None:
            np.save(place / f"{array}.npy", values, allow_pickle=False)
    about = {
        **{key: getattr(data, key) for key in ("name", "task", "domains", "classes", "notes", "groups")},
        "columns": [asdict(column) for column in data.columns],
        "fingerprint": data.fingerprint,
    }
    write_json(place / _ABOUT, about)
    return place


def load_arrays(folder: Path) -> DataSet:
    """Load what `save_arrays` wrote."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        expected = about.pop("fingerprint")
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in _ARRAYS
            if (folder / f"{name}.npy").exists()
        }
        listed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in about.items()
        }
        listed["columns"] = tuple(
            Column(column["name"], None if column["levels"] is None else tuple(column["levels"]))
            for column in about["columns"]
        )
        data = DataSet(**listed, **arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnseenError(
            f"{folder} is damaged ({error}): delete it and call unseen.bench with the data set again"
        ) from error
    if data.fingerprint != expected:
        raise UnseenError(
            f"{folder} was changed since it was written: delete it and call unseen.bench with the data again"
        )
    return data
