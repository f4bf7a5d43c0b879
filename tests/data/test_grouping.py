"""Groups named by a column of a table or by file names: keys, notes, refusals, and the split of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from unseen.config import RunConfig
from unseen.data import DataRequest, load_data
from unseen.data.grouping import group_keys, match_groups
from unseen.data.sources import load_site
from unseen.data.validate import check_data
from unseen.errors import UsageError

HEADER = "domain,patient,x,target"


def write_table(path: Path) -> Path:
    """Write 60 rows of 10 patients who went to both hospitals; two rows name no patient."""
    rows = []
    for number in range(60):
        patient = "" if number < 2 else f"P{number // 2 % 10}"
        rows.append(f"{('south', 'north')[number % 2]},{patient},{number},{'ab'[number % 3 == 0]}")
    path.write_text("\n".join([HEADER, *rows]))
    return path


def test_keys_are_equal_for_equal_names_only_and_hide_the_name():
    keys = group_keys(["Ann", "Bob", "Ann", None, None], list("nnsnn"))
    assert keys[0] == keys[2]
    assert len(set(keys.tolist())) == 4
    assert group_keys([None], ["n"])[0] == group_keys(["Ann", None], ["s", "n"])[1]
    assert (keys >= 0).all()


def test_a_column_names_groups_and_is_no_feature(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_table(tmp_path / "t.csv")
    data = load_data(DataRequest(str(path), group_column="patient"))
    assert [column.name for column in data.columns] == ["x"]
    assert data.repeats_groups and len(set(data.split_group_of.tolist())) == 10 + 2
    assert any("names 10 groups" in note and "2 samples without one" in note for note in data.notes)
    assert load_data(DataRequest(str(path))).split_group_of is None
    for site in ("north", "south"):
        alone = load_site(site, DataRequest(str(path), group_column="patient"))
        np.testing.assert_array_equal(alone.split_group_of, data.split_group_of[data.indices(site)])
        assert [column.name for column in alone.columns] == ["x"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [("patent", "Did you mean 'patient'"), ("target", "--target and --group-column both name 'target'")],
)
def test_a_column_that_cannot_be_the_group_is_refused(tmp_path, column, expected):
    pytest.importorskip("pyarrow")
    path = write_table(tmp_path / "t.csv")
    with pytest.raises(UsageError, match=expected):
        load_data(DataRequest(str(path), group_column=column))
    with pytest.raises(UsageError, match="group-column"):
        load_site("north", DataRequest(str(path), group_column=column))


def test_file_names_give_groups_by_a_pattern(make_images):
    folder = make_images(count=4)
    pattern = r"^(\d)\."
    data = load_data(DataRequest(str(folder), image_size=8, group_pattern=pattern))
    assert len(set(data.split_group_of.tolist())) == 4, "the same number is the same group in every folder"
    assert any("names 4 groups" in note for note in data.notes)
    plain = load_data(DataRequest(str(folder), image_size=8))
    assert plain.split_group_of is None and plain.fingerprint == data.fingerprint
    site = load_site("photo", DataRequest(str(folder / "photo"), image_size=8, group_pattern=pattern))
    np.testing.assert_array_equal(site.split_group_of, data.split_group_of[data.indices("photo")])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("([", "no regular expression"),
        (r"\d+", "captures nothing"),
        ("^(x+)_", r"matches none of 2 file names, such as 1\.jpg"),
    ],
)
def test_a_pattern_that_finds_nothing_is_refused_in_one_line(pattern, expected):
    with pytest.raises(UsageError, match=expected) as caught:
        match_groups(["a/1.jpg", "b/2.jpg"], pattern)
    assert "\n" not in str(caught.value)


def test_the_first_parentheses_of_the_file_name_alone_are_the_group():
    files = ["P1_x/P7_1.jpg", "b/P7_2.jpg", "b/other.jpg"]
    assert match_groups(files, r"(P\d)_(\d)") == ["P7", "P7", None]


def test_splits_are_by_group_wherever_groups_are_named():
    def split(**options: object) -> str | None:
        return RunConfig.from_mapping({"data": "photos/", "hold_out": "a", **options}).split

    assert split() is None
    assert split(group_pattern="(a)") == split(group_column="patient") == "group"
    assert split(data="rotated-mnist") == "group"
    assert split(data="rotated-digits") is None, "every image is in one domain only"
    assert split(data="rotated-mnist", split="sample") == "sample"


def test_old_configurations_keep_their_identity_and_their_split(tmp_path):
    values = {"data": "rotated-mnist", "hold_out": "75"}
    old = RunConfig.from_mapping({**values, "split": "sample"})
    plain = RunConfig(data="rotated-mnist", hold_out=("75",))
    assert plain.split is None and old.identity() == plain.identity() == "7c7496a5758e"
    assert RunConfig.from_mapping(values).identity() != old.identity()
    file = tmp_path / "config.toml"
    file.write_text('data = "rotated-mnist"\nhold_out = ["75"]\n')
    assert RunConfig.load_recorded(file).split == "sample"
    turned = RunConfig.from_mapping({**values, "data_settings": {"direction": "counter-clockwise"}})
    assert turned.identity() != RunConfig.from_mapping(values).identity()


@pytest.mark.parametrize("option", ["group_column", "group_pattern"])
def test_groups_of_a_known_data_set_cannot_be_named(option: str) -> None:
    with pytest.raises(UsageError, match="names its groups itself"):
        load_data(DataRequest("rotated-digits", **{option: "(a)"}))  # type: ignore[arg-type]


def test_an_option_for_groups_in_files_of_another_kind_is_refused(tmp_path, make_images):
    """It was ignored without a word, and samples of one group were on both sides of a split."""
    folder, table = make_images(count=2), tmp_path / "table.csv"
    table.write_text("domain,target,x\nnorth,0,1\nsouth,1,2\n")
    column, pattern = {"group_column": "patient"}, {"group_pattern": "(a)"}
    for path, option, instead in ((folder, column, "--group-pattern"), (table, pattern, "--group-column")):
        request = DataRequest(str(path), image_size=8, **option)
        for load in (load_data, partial(load_site, "photo"), check_data):
            with pytest.raises(UsageError, match=rf"name its groups with {instead}$"):
                load(request)
