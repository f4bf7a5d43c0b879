"""Tables at the sites: the whole protocol, with Flower's transport replaced by calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from table_sites import Row, make_rows, make_tables, table_job, write_csv, write_tables
from tiny_sites import SITES, LoopbackGrid, make_images

from unseen.callbacks.base import Callback, StopTrainingError
from unseen.config import RunConfig
from unseen.data import DataRequest, load_data
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site.ledger import disclosed_bytes
from unseen.deploy.site.site_policy import POLICY
from unseen.deploy.site_summary import COLUMNS
from unseen.deploy.tables.table_statistics import choose_protection
from unseen.errors import UnseenError, UsageError
from unseen.privacy import make_protection
from unseen.privacy.disclosure import PLAIN
from unseen.runner.run import RunResult, run
from unseen.runner.start_record import TABLE_SUMS
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records
from unseen.serving import load_model, predict

NAMED = ("a", "b", "c")
"""Sources of a job that does not start without one of them."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return make_tables(tmp_path / "tables")


def at_sites(folder: Path, home: Path) -> LoopbackGrid:
    return LoopbackGrid(folder, home, suffix=".csv")


def go(grid: LoopbackGrid, config: RunConfig, out: Path, **more: Any) -> RunResult:
    return coordinate(
        grid,  # type: ignore[arg-type]
        config,
        out=out,
        **{"resume": False, "terms": RoundPolicy(deadline=30.0), **more},
    )


def refused(folder: Path, tmp_path: Path, **changes: Any) -> str:
    """Start a run that cannot start; return the one line that says why."""
    grid = at_sites(folder, tmp_path / "sites")
    with pytest.raises(UnseenError) as caught:
        go(grid, table_job(folder, **changes), tmp_path / "run", terms=RoundPolicy(deadline=1.0))
    assert "\n" not in str(caught.value)
    assert not RunFolder(tmp_path / "run").holds_run
    return str(caught.value)


def model(out: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(out).model)


def same_as_on_one_machine(folder: Path, config: RunConfig, tmp_path: Path) -> LoopbackGrid:
    grid = at_sites(folder, tmp_path / "sites")
    there = go(grid, config, tmp_path / "there")
    here = run(config, out=tmp_path / "here")
    sent, own = model(there.folder), model(here.folder)
    assert sent.keys() == own.keys()
    assert all(torch.equal(sent[name], own[name]) for name in own)
    assert there.values["metrics"] == here.values["metrics"]
    assert there.model.card.encoding == here.model.card.encoding
    return grid


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": "score"},
        {"table_statistics": "local"},
        {"method": "ridge"},
        {"partition": "iid", "clients_per_domain": 2, "batch_size": 4},
        {"hold_out": ("held", "b"), "validate_on": ("c",)},
    ],
    ids=str,
)
def test_tables_at_sites_give_the_weights_of_one_machine(changes: dict[str, Any], tmp_path: Path) -> None:
    """Build 7: the coordinator combines the sites' column sums into the encoding of one process."""
    folder = make_tables(tmp_path / "tables", target=changes.get("target", "target"))
    same_as_on_one_machine(folder, table_job(folder, **changes), tmp_path)


def start_of(out: Path) -> Record:
    return read_records(RunFolder(out).records)[0]


def numbers_of(encoding: dict[str, Any]) -> list[float]:
    return [*encoding["means"], *encoding["stds"], encoding["target_mean"], encoding["target_std"]]


@pytest.mark.parametrize("protect", ["secure-sum", "encrypted"])
def test_protected_sums_give_the_same_encoding_and_no_site_sends_its_own(
    protect: str, tmp_path: Path
) -> None:
    """Build 7: column sums go through the exchange of the protection; only their sum over sites is read."""
    if protect == "encrypted":
        pytest.importorskip("tenseal")
    folder = make_tables(tmp_path / "tables", target="score")
    config = table_job(folder, target="score", protect=protect, rounds=1)
    grid = at_sites(folder, tmp_path / "sites")
    there = go(grid, config, tmp_path / "there").model.card.encoding
    here = run(config, out=tmp_path / "here").model.card.encoding
    assert there is not None
    assert here is not None
    assert numbers_of(there) == pytest.approx(numbers_of(here), rel=1e-14)
    assert {**there, **dict.fromkeys(("means", "stds", "target_mean", "target_std"))} == {
        **here,
        **dict.fromkeys(("means", "stds", "target_mean", "target_std")),
    }
    left = [entry for entry in start_of(tmp_path / "there")["left"] if entry["kind"] == TABLE_SUMS]
    assert left
    assert all("masked" in entry["protected"] or "encrypted" in entry["protected"] for entry in left)
    for _, question, answer in grid.log:
        if question.header["ask"] == "train":
            assert not any(name.endswith(TABLE_SUMS) for name in answer.arrays)


def test_sums_over_other_sites_are_not_opened_in_any_run(tmp_path: Path) -> None:
    """P2, P3: every exchange had a run id of its own, so two lists of sites gave sums to subtract."""
    folder = make_tables(tmp_path / "tables")
    grid = at_sites(folder, tmp_path / "sites")
    job = {"protect": "secure-sum", "rounds": 1, "sources": NAMED, "evaluate_every": 1}
    go(grid, table_job(folder, **job), tmp_path / "first")
    others = table_job(folder, **{**job, "hold_out": ("c",), "sources": ("a", "b", "held"), "seed": 1})
    with pytest.raises(UnseenError, match=r"opened before, over other clients than .*column sums\.jsonl"):
        go(grid, others, tmp_path / "others")
    go(grid, table_job(folder, **job, seed=1), tmp_path / "same")
    (tmp_path / "sites" / "a" / "answered" / "column sums.jsonl").unlink()
    with pytest.raises(UnseenError, match="opened before"):
        go(grid, others, tmp_path / "others")
    (tmp_path / "sites" / "b" / "answered" / "column sums.jsonl").unlink()
    go(grid, others, tmp_path / "others")


# what leaves


def test_the_record_and_the_ledger_name_what_left(tables: Path, tmp_path: Path) -> None:
    grid = at_sites(tables, tmp_path / "sites")
    go(grid, table_job(tables, rounds=1), tmp_path / "run")
    left = {entry["kind"]: entry for entry in start_of(tmp_path / "run")["left"]}
    assert left[TABLE_SUMS]["protected"] == PLAIN
    assert left[TABLE_SUMS]["from"] == "all"
    assert "ward" not in str(left)
    assert COLUMNS in left
    sums = [
        disclosed_bytes(question, answer)
        for _, question, answer in grid.log
        if "columns" in question.header.get("job", {})
    ]
    assert len(sums) == 2 * 3
    assert all(TABLE_SUMS in kinds for kinds in sums)
    asked = [site for site, question, _ in grid.log if "columns" in question.header.get("job", {})]
    assert "held" not in asked


def test_noise_does_not_cover_column_sums_and_the_run_says_so(tables: Path) -> None:
    """Build 7: noise covers training; sums that a sealing protection cannot hide are not sent at all."""
    data = load_data(DataRequest(str(tables / "whole.csv")))
    for name in ("dp-samples", "dp-clients"):
        guard, note = choose_protection(make_protection(name, {"noise": 1.0}), data)
        assert guard.name == "none"
        assert "does not cover them" in note[0]
    summing = make_protection("secure-sum")
    assert choose_protection(summing, data) == (summing, ())

    both = make_protection("secure-sum,dp-clients", {"noise": 1.0, "bits": 20})
    guard, note = choose_protection(both, data)
    assert (guard.name, guard.settings.bits) == ("secure-sum", 20)
    assert "with --protect secure-sum alone" in note[0]

    class Sealed(type(make_protection("dp-clients", {"noise": 1.0}))):  # type: ignore[misc]
        name, seals = "sealed", True

    with pytest.raises(UsageError, match="--protect sealed does not support tables at sites"):
        choose_protection(Sealed(make_protection("dp-clients", {"noise": 1.0}).settings), data)


def test_a_small_group_is_neither_named_nor_summed(tmp_path: Path) -> None:
    """Build 7: the sum of one value is that value, and a text that one patient has tells of that patient."""
    rows = {site: make_rows(site) for site in SITES}
    rows["a"][0]["ward"] = "of one patient"
    for row in rows["a"][2:]:
        row["age"] = ""
    rows["a"][0]["age"] = rows["a"][1]["age"] = 977.0
    folder = write_tables(tmp_path / "tables", rows)
    grid = at_sites(folder, tmp_path / "sites")
    (grid.sites[0].home / POLICY).write_text("min_group = 3\n", encoding="utf-8")
    result = go(grid, table_job(folder, rounds=1), tmp_path / "run")
    sent = str([answer.header for site, _, answer in grid.log if site == "a"])
    assert "of one patient" not in sent
    for site, question, answer in grid.log:
        if site == "a" and "columns" in question.header.get("job", {}):
            assert answer.arrays[f"a/extras/{TABLE_SUMS}"][0] == 0
    assert max(result.model.card.encoding["means"][:1]) < 200  # type: ignore[index]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            'values = ["model weights", "number of samples"]',
            f"sending {TABLE_SUMS!r}",
        ),
        ('protections = ["dp-samples"]', "protection 'none'"),
    ],
    ids=["values", "protections"],
)
def test_a_site_refuses_sums_that_its_policy_does_not_allow(
    policy: str, said: str, tables: Path, tmp_path: Path
) -> None:
    grid = at_sites(tables, tmp_path / "sites")
    (grid.sites[1].home / POLICY).write_text(f"min_group = 1\n{policy}\n", encoding="utf-8")
    with pytest.raises(UnseenError, match="b: refused by the site's policy") as caught:
        go(grid, table_job(tables, sources=NAMED), tmp_path / "run", terms=RoundPolicy(deadline=1.0))
    assert said in str(caught.value)


# sites that do not fit together


def drop(name: str) -> Callable[[Row], None]:
    return lambda row: row.pop(name)


def put(name: str, value: Any) -> Callable[[Row], None]:
    return lambda row: row.__setitem__(name, value)


@pytest.mark.parametrize(
    ("site", "change", "said"),
    [
        ("b", drop("ward"), ["site b has no column 'ward', which site a has"]),
        ("b", put("extra", 1), ["site a has no column 'extra', which site b has"]),
        ("c", put("age", "old"), ["column 'age' has numbers at site a and text at site c"]),
        ("b", drop("target"), ["b: its table has no column 'target', which --target names"]),
        ("b", put("target", ""), ["b: its column 'target' has no usable value"]),
        ("b", put("domain", "x"), ["b: its table has a column 'domain' in which no row is 'b'"]),
        ("c", put("target", 0.5), ["the target is read as regression at site c", "--task"]),
        ("held", put("target", "never seen"), ["class 'never seen' of the held-out domain 'held'"]),
    ],
    ids=["missing", "more", "kind", "no target", "empty target", "domain", "task", "class"],
)
def test_columns_that_do_not_fit_are_one_line_with_site_and_column(
    site: str, change: Callable[[Row], None], said: list[str], tmp_path: Path
) -> None:
    rows = {name: make_rows(name) for name in SITES}
    folder = write_tables(tmp_path / "tables", rows)
    for row in rows[site]:
        row.pop("score")
        change(row)
    write_csv(folder / f"{site}.csv", rows[site])
    found = refused(folder, tmp_path, sources=NAMED)
    assert all(part in found for part in said), found


class Notes(Callback):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_note(self, note: str) -> None:
        self.seen.append(note)


def test_a_run_that_starts_without_a_refused_site_says_so(tables: Path, tmp_path: Path) -> None:
    rows = make_rows("b")
    for row in rows:
        del row["target"]
    write_csv(tables / "b.csv", rows)
    notes = Notes()
    go(at_sites(tables, tmp_path / "sites"), table_job(tables, rounds=1), tmp_path / "run", callbacks=notes)
    assert "starts without a site that was refused: b: its table has no column 'target'" in str(notes.seen)


def test_a_table_and_images_do_not_fit_together(tables: Path, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    grid = at_sites(tables, tmp_path / "sites")
    grid.sites[1] = replace(grid.sites[1], data=str(images / "b"))
    with pytest.raises(UnseenError, match="site b has classification on samples of shape"):
        go(grid, table_job(tables), tmp_path / "run")


def test_an_identifier_at_one_site_is_named_and_used_nowhere(tmp_path: Path) -> None:
    rows = {site: make_rows(site) for site in SITES}
    for site in SITES:
        for i, row in enumerate(rows[site]):
            row["patient"] = f"{site}-{i}" if site == "b" else f"group {i % 3}"
    folder = write_tables(tmp_path / "tables", rows)
    grid = at_sites(folder, tmp_path / "sites")
    result = go(grid, table_job(folder, rounds=1), tmp_path / "run")
    assert not any("b-1" in str(answer.header) for site, _, answer in grid.log if site == "b")
    notes = start_of(tmp_path / "run")["data"]["notes"]
    assert any("left out column 'patient': site b cannot use its values" in note for note in notes)
    assert "patient" not in str(result.model.card.encoding)


def test_numbers_as_classes_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = {site: make_rows(site, rows=40) for site in SITES}
    for site, own in rows.items():
        for i, row in enumerate(own):
            row["target"] = (2, 10, 9)[i % (2 if site == "a" else 3)]
    folder = write_tables(tmp_path / "tables", rows)
    same_as_on_one_machine(folder, table_job(folder, rounds=1), tmp_path)
    assert load_model(tmp_path / "there").card.classes == ("2", "9", "10")


def test_a_site_takes_its_own_rows_of_a_parquet_file_with_domains(tables: Path, tmp_path: Path) -> None:
    csv = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(csv.read_csv(tables / "whole.csv"), tables / "whole.parquet")
    grid = at_sites(tables, tmp_path / "sites")
    grid.sites[0] = replace(grid.sites[0], data=str(tables / "whole.parquet"))
    grid.sites[2] = replace(grid.sites[2], data=str(tables / "whole.csv"))
    there = go(grid, table_job(tables, rounds=1), tmp_path / "there")
    here = run(table_job(tables, rounds=1), out=tmp_path / "here")
    assert all(torch.equal(model(there.folder)[key], value) for key, value in model(here.folder).items())


# faults and damage


def test_a_site_that_drops_out_or_lies_about_its_sums_stops_the_start_and_is_named(
    tables: Path, tmp_path: Path
) -> None:
    def lie(change: Callable[[Any], Any]) -> Callable[[str, SiteMessage, SiteMessage], SiteMessage]:
        def spoil(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
            key = f"b/extras/{TABLE_SUMS}"
            if key not in answer.arrays:
                return answer
            return SiteMessage(answer.header, {**answer.arrays, key: change(answer.arrays[key].copy())})

        return spoil

    def changed(place: int, value: float) -> Callable[[Any], Any]:
        def change(array: Any) -> Any:
            array[place] = value
            return array

        return change

    lies = {
        "count": (changed(0, 1e6), "column 'age'"),
        "negative": (changed(0, -3), "column 'age'"),
        "nan": (changed(-1, np.nan), "NaN or infinite"),
        "squares": (changed(-2, -5.0), "cannot be of the same values"),
        "shape": (lambda array: array[:-1], "of shape"),
        "type": (lambda array: array.astype(np.float32), "float32"),
    }
    for name, (change, said) in lies.items():
        grid = at_sites(tables, tmp_path / f"sites-{name}")
        grid.spoil = lie(change)
        with pytest.raises(UnseenError, match="the run was not started") as caught:
            go(grid, table_job(tables), tmp_path / f"run-{name}")
        assert "b: " in str(caught.value), name
        assert said in str(caught.value), (name, str(caught.value))


def test_under_a_protection_nothing_is_opened_if_a_site_is_missing(tables: Path, tmp_path: Path) -> None:
    """Build 7: a sum of fewer sites, opened in another attempt, would show one site's by subtraction."""
    grid = at_sites(tables, tmp_path / "sites")

    def away(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        gone = site == "b" and question.header["ask"] == "train"
        return SiteMessage({"site": site, "error": "gone"}) if gone else answer

    grid.spoil = away
    with pytest.raises(UnseenError, match=r"the run was not started, .*b: gone"):
        go(grid, table_job(tables, protect="secure-sum"), tmp_path / "run")
    last = max(place for place, (_, question, _) in enumerate(grid.log) if question.header["ask"] == "train")
    assert not [question for _, question, _ in grid.log[last + 1 :] if question.header["ask"] == "consult"]


class StopAfter(Callback):
    """Ends the run after its first round, like a crash."""

    def on_record(self, record: Record) -> None:
        if record["event"] == "round":
            raise StopTrainingError


def test_a_resumed_run_keeps_its_encoding_and_asks_no_site_again(tables: Path, tmp_path: Path) -> None:
    config, out = table_job(tables), tmp_path / "run"
    with pytest.raises(StopTrainingError):
        go(at_sites(tables, tmp_path / "sites"), config, out, callbacks=StopAfter())
    grid = at_sites(tables, tmp_path / "sites")
    resumed = go(grid, config, out, resume=True)
    assert not [question for _, question, _ in grid.log if "columns" in question.header.get("job", {})]
    whole = run(config, out=tmp_path / "here")
    assert resumed.values["metrics"] == whole.values["metrics"]
    kept = RunFolder(out).table
    kept.write_text(kept.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    with pytest.raises(UnseenError, match=r"table.json cannot be used \(its checksum differs\)"):
        go(grid, config, out, resume=True)


def test_the_model_of_the_sites_predicts_from_a_file(tables: Path, tmp_path: Path) -> None:
    result = go(at_sites(tables, tmp_path / "sites"), table_job(tables), tmp_path / "run")
    rows = make_rows("held")
    for row in rows:
        del row["target"], row["score"]
    write_csv(tmp_path / "new.csv", rows)
    assert result.model.card.encoding is not None
    found = predict(result.model, tmp_path / "new.csv")
    assert len(found) == len(rows)
