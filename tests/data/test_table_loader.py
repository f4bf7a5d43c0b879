import builtins
import datetime

import numpy as np
import pytest

from unseen.data import Column, DataRequest, load_data
from unseen.data.tables.table_loader import load_rows, load_table
from unseen.errors import UnseenError, UsageError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402


def load(path, **request):
    return load_table(path, DataRequest(str(path), **request))


@pytest.fixture
def write(tmp_path):
    def write_csv(text: str, name: str = "t.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_csv


@pytest.fixture
def write_parquet(tmp_path):
    def write(columns, name: str = "t.parquet"):
        path = tmp_path / name
        parquet.write_table(pa.table(columns), path)
        return path

    return write


SMALL = """domain,age,colour,smokes,visit,target
north,31,red,true,2020-01-02,ill
south,,blue,false,2020-01-03,well
north,45.5,,true,2020-01-01,well
south,50,red,,2020-01-01,ill
"""


def test_a_small_table_keeps_raw_values(write):
    data = load(write(SMALL))
    assert data.task == "classification"
    assert data.name == "t"
    assert data.domains == ("north", "south")
    assert data.classes == ("ill", "well")
    assert data.domain_of.tolist() == [0, 1, 0, 1]
    assert data.targets.tolist() == [0, 1, 1, 0]
    assert data.columns == (
        Column("age"),
        Column("colour", ("blue", "red")),
        Column("smokes"),
        Column("visit"),
    )
    nan = np.nan
    expected = [[31, 1, 1, 18263], [nan, 0, 0, 18264], [45.5, nan, 1, 18262], [50, 1, nan, 18262]]
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.inputs, np.array(expected, dtype=np.float32))
    assert data.notes == ()


def test_parquet_gives_the_same_data_set_as_csv(write, write_parquet):
    visit = [datetime.datetime(2020, 1, day, tzinfo=datetime.UTC) for day in (2, 3, 1, 1)]
    path = write_parquet(
        {
            "domain": pa.array(["north", "south", "north", "south"]).dictionary_encode(),
            "age": [31, None, 45.5, 50],
            "colour": pa.array(["red", "blue", None, "red"]).dictionary_encode(),
            "smokes": [True, False, True, None],
            "visit": visit,
            "target": ["ill", "well", "well", "ill"],
        }
    )
    from_parquet, from_csv = load(path), load(write(SMALL))
    np.testing.assert_array_equal(from_parquet.inputs, from_csv.inputs)
    assert from_parquet.columns == from_csv.columns
    assert from_parquet.classes == from_csv.classes
    assert from_parquet.fingerprint == from_csv.fingerprint


def test_load_data_finds_a_table_by_its_suffix(write):
    path = write("site,x,y\n1,2,0.5\n2,3,0.7\n10,4,1.5\n")
    data = load_data(DataRequest(str(path), domain_column="site", target_column="y"))
    assert data.task == "regression"
    assert data.domains == ("1", "2", "10")
    assert data.targets.dtype == np.float32
    assert data.targets.tolist() == [0.5, np.float32(0.7), 1.5]
    assert data.classes == ()


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        (["yes", "no"] * 20, "classification", ("no", "yes")),
        (["true", "false"] * 20, "classification", ("false", "true")),
        ([0, 1, 2, 10] * 10, "classification", ("0", "1", "2", "10")),
        (list(range(40)), "regression", ()),
        ([0.0, 1.5] * 20, "regression", ()),
    ],
)
def test_the_target_column_decides_the_task(write, target, task, classes):
    rows = "".join(f"{'ab'[i % 2]},{i},{value}\n" for i, value in enumerate(target))
    data = load(write("domain,x,target\n" + rows))
    assert data.task == task
    assert data.classes == classes


def test_the_task_can_be_chosen(write):
    path = write("domain,x,target\na,1,3\nb,2,5\na,4,3\n")
    assert load(path, task="regression").targets.tolist() == [3.0, 5.0, 3.0]
    assert load(path, task="classification").classes == ("3", "5")
    assert "read as 2 classes; --task changes that" in load(path).notes[0]


def test_rows_without_domain_or_target_are_left_out_with_a_note(write):
    data = load(
        write("domain,x,target\na,1,0.5\n,2,0.5\nb,3,\nNA,4,1.5\nb,5,inf\nb,6,2.5\n"), task="regression"
    )
    assert data.domains == ("NA", "a", "b")
    assert data.inputs[:, 0].tolist() == [1, 4, 6]
    assert data.notes == ("left out 3 of 6 rows: 1 without 'domain', 2 without a usable 'target'",)


def test_a_domain_whose_rows_are_all_left_out_is_gone(write):
    assert load(write("domain,x,target\na,1,u\nb,2,\nc,3,v\n")).domains == ("a", "c")


def test_missing_words_are_missing_in_features(write):
    data = load(write("domain,x,w,target\na,NA,?,u\nb,2,n/a,v\na,3,p,v\n"))
    np.testing.assert_array_equal(data.inputs, np.array([[np.nan, np.nan], [2, np.nan], [3, 0]]))


def test_values_that_are_not_finite_become_missing_with_a_note(write):
    data = load(write("domain,x,target\na,inf,u\nb,1e300,v\na,3,v\n"))
    np.testing.assert_array_equal(data.inputs[:, 0], [np.nan, np.nan, 3])
    assert data.notes == ("column 'x': 2 values are not finite and count as missing",)


def test_useless_columns_are_left_out_with_a_note(write):
    rows = "".join(f"{i},{'ab'[i % 2]},{i},p{i},,c{i % 12},{'uv'[i % 3 == 0]}\n" for i in range(30))
    data = load(write(",domain,x,person,blank,city,target\n" + rows))
    assert [column.name for column in data.columns] == ["x", "city"]
    assert data.notes == (
        "left out column '': row numbers without a name",
        "left out column 'person': 30 different texts in 30 rows, like an identifier",
        "left out column 'blank': empty",
    )


def test_nested_columns_are_left_out_and_cannot_be_a_target(write_parquet):
    path = write_parquet({"domain": ["a", "b"], "x": [1, 2], "boxes": [[1], [2, 3]], "target": ["u", "v"]})
    assert load(path).notes[0].startswith("left out column 'boxes': unusable type list")
    with pytest.raises(UsageError, match=r"'boxes' holds list.* with --target"):
        load(path, target_column="boxes")


def test_a_type_may_change_late_in_a_large_file(write):
    rows = "".join(f"{'ab'[i % 2]},{i % 7},{'uv'[i % 3 == 0]}\n" for i in range(200_000))
    data = load(write("domain,x,target\n" + rows + "a,seven,u\n"))
    assert data.columns[0].levels == ("0", "1", "2", "3", "4", "5", "6", "seven")


def test_semicolons_and_a_byte_order_mark_are_understood(write):
    data = load(write("\ufeffdomain;x;target\na;1,5;u\nb;2,5;v\n"))
    assert data.columns == (Column("x", ("1,5", "2,5")),)


def test_one_domain_alone_loads(write):
    assert load(write("domain,x,target\na,1,u\na,2,v\n")).domains == ("a",)


@pytest.mark.parametrize(
    ("text", "request_", "error", "message"),
    [
        ("", {}, UnseenError, "Empty CSV"),
        ("domain,x,target\n", {}, UnseenError, "no rows"),
        ("domain,x,target\na,1\n", {}, UnseenError, "Expected 3 columns, got 2"),
        ("domain,x,x,target\na,1,2,u\n", {}, UnseenError, "'x' occurs more than once"),
        ("Domain,x,target\na,1,u\n", {}, UsageError, "--domain-column.*'domain'.*mean 'Domain'"),
        ("domain,x,targets\na,1,u\n", {}, UsageError, "--target.*mean 'targets'"),
        ("domain,x,target\na,1,u\n", {"target_column": "domain"}, UsageError, "both name 'domain'"),
        ("domain,target\na,u\nb,v\n", {}, UnseenError, "no usable feature column"),
        ("domain,x,target\na,,u\nb,,v\n", {}, UnseenError, "left out column 'x': empty"),
        ("domain,x,target\n,1,u\na,2,\n", {}, UnseenError, "no row has both"),
        ("domain,x,target\n,1,u\n,2,v\n", {}, UnseenError, "no row has both"),
        ("domain,x,target\na,1,u\nb,2,u\n", {}, UnseenError, "at least two classes"),
        ("domain,x,target\na,1,u\nb,2,v\n", {"task": "regression"}, UsageError, "'u', but regression needs"),
    ],
)
def test_bad_tables_are_refused_in_one_line(write, text, request_, error, message):
    with pytest.raises(error, match=message) as caught:
        load(write(text), **request_)
    assert "\n" not in str(caught.value)


def test_identifiers_are_no_domains_and_no_classes(write):
    path = write("id,x,target\n" + "".join(f"p{i},{i % 5},{'uv'[i % 2]}\n" for i in range(30)))
    with pytest.raises(UsageError, match=r"30 domains of 30 rows.*--domain-column"):
        load(path, domain_column="id")
    with pytest.raises(UsageError, match=r"30 classes of 30 rows.*--task regression"):
        load(path, domain_column="x", target_column="id")


def test_files_that_are_no_tables_are_refused(tmp_path):
    for name, content in (("t.parquet", b"PAR1 no"), ("t.csv", "é,b\n".encode("latin-1"))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UnseenError, match="not readable as a table"):
            load(path)


def test_a_missing_library_is_named_with_its_extra(write, monkeypatch):
    real = builtins.__import__

    def without_pyarrow(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    path = write(SMALL)
    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(UnseenError, match=r"unseen\[tables\]"):
        load(path)


def test_rows_are_read_for_known_columns(write):
    columns = (Column("colour", ("blue", "red")), Column("age"), Column("code", ("1", "2", "x")))
    path = write("code,age,extra,colour\n2,1.5,q,red\n3,,q,green\n1,inf,q,\n")
    nan = np.nan
    np.testing.assert_array_equal(load_rows(path, columns), [[1, 1.5, 1], [nan, nan, nan], [nan, nan, 0]])
    with pytest.raises(UsageError, match="Did you mean 'age'"):
        load_rows(path, (Column("ages"),))
    with pytest.raises(UnseenError, match="'extra' holds string"):
        load_rows(path, (Column("extra"),))
