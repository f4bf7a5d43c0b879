"""`unseen reproduce` as users meet it: what can be run, what would be run, and a short run of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unseen.bench.papers.recipe import list_recipes


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.delenv("UNSEEN_DATA", raising=False)


@pytest.fixture
def mnist_only(tmp_path, no_data) -> Path:
    """A data root that looks as if it held MNIST."""
    (tmp_path / "root" / "digits").mkdir(parents=True)
    (tmp_path / "root" / "digits" / "mnist.npz").touch()
    return tmp_path / "root"


def test_the_list_says_what_is_ready_and_where_to_put_the_rest(unseen, mnist_only):
    answer = unseen("reproduce", "--list", "--data-root", mnist_only)
    assert answer.code == 0, answer.err
    rows = {name: line for line in answer.out.splitlines() for name in list_recipes() if f" {name} " in line}
    assert set(rows) == set(list_recipes())
    assert "ready" in rows["csac-table3"] and "CSAC 2023, Table 3" in rows["csac-table3"]
    assert "data missing" in rows["csac-table1"]
    told = answer.out.split("To get what is missing")[1]
    assert "pacs: put the PACS release" in told and str(mnist_only) in told
    assert "rotated-mnist" not in told
    assert "alexnet: put ImageNet weights as weights/alexnet_imagenet.safetensors" in told


def test_the_list_for_machines_is_the_same_by_both_names(unseen, mnist_only):
    found = json.loads(unseen("reproduce", "--list", "--json", "--data-root", mnist_only).out)
    assert found == json.loads(unseen("list", "recipes", "--json", "--data-root", mnist_only).out)
    assert {entry["recipe"] for entry in found if entry["runnable"]} == {
        "csac-2021-table1", "csac-table3", "ppdg-table4", "ppdg-table7-rotated-mnist",
    }  # fmt: skip


def test_show_runs_nothing_and_counts_what_would_be_run(unseen, no_data, tmp_path):
    shown = unseen("reproduce", "csac-table3", "--budget", "paper", "--show")
    assert shown.code == 0 and "150 jobs, about 229,440,000 training samples" in shown.out
    assert "data missing: put digits/mnist.npz" in shown.out and "published CSAC 2023, Table 3" in shown.out
    options = ("--methods", "csac,fedavg", "--hold-out", "0,75", "--seeds", "2", "--json")
    facts = json.loads(unseen("reproduce", "csac-table3", "--budget", "paper", "--show", *options).out)
    assert facts["jobs"] == 8 and facts["samples"] == 4 * (41 * 5 * 20 + 30 * 60 + 40 * 5 * 20) * 64 * 5
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("csac-tabel3",), 2, "Did you mean 'csac-table3'"),
        (
            ("csac-table4",),
            2,
            "csac-table4 has 2 parts, name one of them: csac-table4-pacs, csac-table4-vlcs",
        ),
        ((), 2, "name a recipe"),
        (("csac-table3", "--budget", "huge"), 2, "unknown budget 'huge'"),
        (("csac-table3", "--methods", "ppdg", "--show"), 2, "unknown methods of this recipe: 'ppdg'"),
        (("csac-table3", "--hold-out", "90", "--show"), 2, "unknown hold-out of this recipe: '90'"),
        (("csac-table3",), 1, "csac-table3 needs data that is missing: put digits/mnist.npz"),
    ],
)
def test_wrong_use_is_one_line(unseen, no_data, arguments, code, words):
    answer = unseen("reproduce", *arguments)
    assert answer.code == code and words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_missing_weights_are_asked_for(unseen, mnist_only):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (mnist_only / "pacs" / domain).mkdir(parents=True)
    answer = unseen("reproduce", "csac-table1", "--data-root", mnist_only)
    assert answer.code == 1 and "put weights/resnet18_imagenet.safetensors below the data root" in answer.err


@pytest.mark.real_data
@pytest.mark.skipif("UNSEEN_DATA" not in os.environ, reason="UNSEEN_DATA names no folder with MNIST")
def test_smoke_on_real_mnist_and_on_from_where_it_was(unseen, tmp_path):
    call = ("reproduce", "csac-table3", "--budget", "smoke", "--out", "t3", "--json")
    first = json.loads(unseen(*call, "--methods", "fedavg").out)
    both = json.loads(unseen(*call, "--methods", "fedavg,csac").out)
    assert [result["label"] for result in both["results"]] == ["fedavg", "csac"]
    assert both["results"][0] == first["results"][0], "a finished job is not repeated"
    assert both["failed"] == both["missing"] == []
    page = (tmp_path / "t3" / "report.html").read_text(encoding="utf-8")
    assert "90.73" in page and "CSAC 2023" in page, "published rows stand beside ours"
