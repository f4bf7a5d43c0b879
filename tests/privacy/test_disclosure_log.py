"""The record of what left: complete, small, and readable on the page."""

from __future__ import annotations

import json

import pytest

import unseen
from unseen.privacy import DisclosureEntry, DisclosureLog, sum_bytes_by_sender, sum_disclosures
from unseen.report.run_page import run_page
from unseen.runs.reader import read_run

OPTIONS = {"hold_out": "75", "rounds": 2, "batches_per_epoch": 2, "workers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unseen.train(
        "rotated-digits", method="scaffold", out=tmp_path_factory.mktemp("record") / "run", **OPTIONS
    ).folder


def read(folder):
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return records, json.loads((folder / "result.json").read_text())


def test_every_kind_stands_in_the_result_with_its_sums(folder):
    records, result = read(folder)
    lines = {line["kind"]: line for line in result["left"]}
    assert list(lines) == result["privacy"]
    assert set(lines) == {
        "numbers of samples and class counts",
        "model weights",
        "number of samples",
        "training loss and counts of steps and samples",
        "change of the control variate",
        "diagnostics",
        "validation metrics",
        "test metrics",
        "metrics on the held-out domain",
        "histograms of predicted probabilities or errors, and sums that calibrate them",
        "sums and products of the model's features, and histograms of their distances",
        "example images, for the report",
    }
    weights = lines["model weights"]
    parameters = records[0]["parameters"]
    assert (weights["senders"], weights["messages"]) == (5, 10)
    assert weights["bytes"] == 10 * 4 * parameters and weights["values"] == 10 * parameters
    asked = 2 + 1 + 1 + 2  # evaluations, the closing one, for the temperature, for the moments of features
    assert lines["validation metrics"]["messages"] == asked * 5
    assert lines["validation metrics"]["values"] == asked * 5 * 101
    assert lines["example images, for the report"]["senders"] == 1
    assert result["protection"]["name"] == "none"
    assert "can read each client's own" in result["protection"]["statement"]


def test_rounds_add_up_to_the_result(folder):
    records, result = read(folder)
    sent = sum_bytes_by_sender(records)
    assert set(sent) == {"0", "15", "30", "45", "60", "75"}
    assert "model weights" not in sent["75"], "the held-out domain takes no part"
    assert sum(sum(kinds.values()) for kinds in sent.values()) == sum(
        line["bytes"] for line in result["left"]
    )
    tensors = ("model weights", "change of the control variate")
    assert result["bytes_up"] == sum(line["bytes"] for line in result["left"] if line["kind"] in tensors)


def test_pooled_data_is_named_with_its_size(tmp_path):
    run = unseen.train("rotated-digits", method="deepall", out=tmp_path / "run", **OPTIONS)
    lines = {line["kind"]: line for line in run.values["left"]}
    assert "model weights" not in lines and lines["all training data"]["senders"] == 5
    records, _ = read(run.folder)
    (client,) = records[0]["clients"]
    each = lines["all training data"]["bytes"] / client["train"]
    assert lines["all training data"]["messages"] == 5 and each == int(each) > 64


def test_sums_of_a_table_are_named(tmp_path):
    lines = ["domain,target,a,b"]
    lines += [f"{d},{n % 5},{n * 0.1},{'xyz'[n % 3]}" for d in "pqr" for n in range(40)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))
    run = unseen.train(
        str(table), hold_out="r", task="regression", rounds=1, batch_size=8, workers=1, out=tmp_path / "run"
    )
    found = {line["kind"]: line for line in run.values["left"]}
    sums = found["sums and level counts of table columns"]
    assert sums["senders"] == 2 and sums["values"] == 2 * 2 * (4 * 3 + 3)
    assert found["targets of samples with their predictions, for the report"]["values"] == 2 * 40


def test_lines_of_many_clients_are_one():
    left, names = DisclosureLog(), [f"client {number}" for number in range(5000)]
    for name in names:
        left.add(name, [DisclosureEntry("model weights", 10, 40), DisclosureEntry("number of samples", 1, 8)])
    left.add(names[3], [DisclosureEntry("spectra", 5, 20)])
    entries = left.entries(names)
    assert [entry["from"] for entry in entries] == ["all", "all", ["client 3"]]
    record = {"event": "round", "round": 1, "clients": names, "left": entries}
    weights, _, spectra = sum_disclosures([record, record])
    assert weights == {
        "kind": "model weights",
        "protected": "not protected",
        "senders": 5000,
        "messages": 5000,
        "values": 50_000,
        "bytes": 200_000,
    }, "a round that was repeated counts once"
    assert spectra["messages"] == 1


def test_clients_that_are_not_listed_are_counted():
    line = {"kind": "facts", "values": 2, "bytes": 16, "protected": "not protected", "from": "all"}
    record = {"event": "start", "clients": [{"name": "a"}], "client_count": 3000, "left": [line]}
    (total,) = sum_disclosures([record])
    assert (total["senders"], total["messages"], total["bytes"]) == (3000, 3000, 48_000)


def test_the_page_says_it_in_words(folder):
    page = run_page(read_run(folder)).split("<h2>What left the clients</h2>")[1]
    assert "whoever runs the server can read each client" in page
    for words in ("change of the control variate", "example images", "not protected", "records.jsonl"):
        assert words in page
    assert "Totals of each of the 6 senders" in page


def test_pages_of_older_runs_keep_their_list(folder, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.toml", "records.jsonl"):
        (old / name).write_bytes((folder / name).read_bytes())
    (old / "result.json").write_text(json.dumps({"privacy": ["model weights", "<b>"]}))
    page = run_page(read_run(old)).split("<h2>What left the clients</h2>")[1]
    assert "these kinds of values left" in page and "&lt;b&gt;" in page
