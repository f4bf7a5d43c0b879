"""The model card says what the records say, survives names of any kind and old runs, and names its limits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tiny_data import tiny_data
from unseen.errors import UnseenError, UsageError
from unseen.report.model_card import changed_files, model_card, read_card, write_model_card
from unseen.runner.run import train
from unseen.runs.reader import read_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    options = {"rounds": 2, "batch_size": 8, "validation": 0.3, "model": "mnist-cnn", "workers": 1}
    out = tmp_path_factory.mktemp("card") / "run"
    return train(tiny_data(per_class=20), hold_out="held", out=out, **options).folder


def test_a_run_ends_with_a_card_of_its_numbers(finished):
    card, result = read_card(finished), json.loads((finished / "result.json").read_text())
    assert card["metrics"]["target"] == result["metrics"]["target"]
    held = card["metrics"]["held_out_domains"]["held"]
    assert held["accuracy"] == result["target_domains"]["held"]["accuracy"] and held["samples"] == 60
    assert card["data"]["sources"] == {"a": 60, "b": 60, "c": 60} and card["data"]["held_out"] == ["held"]
    assert card["left"] == result["left"] and card["protection"] == result["protection"]
    assert card["calibration"]["target"] == result["calibration"]["target"]
    covered = card["coverage"]["held_out_domains"]["held"]["coverage"]
    assert covered == result["conformal"]["target"]["widened"]["coverage"]
    assert card["versions"]["trained_with"]["unseen"] and card["versions"]["card_written_with"]["torch"]
    assert card["energy"]["how"] in {"measured", "estimated"} and card["energy"]["joules"] > 0
    if card["energy"]["how"] == "estimated":
        assert card["energy"]["joules"] == pytest.approx(15 * card["energy"]["cpu_seconds"])


def test_people_read_the_same(finished):
    text, card = (finished / "model-card.md").read_text(), read_card(finished)
    accuracy = card["metrics"]["held_out_domains"]["held"]["accuracy"]
    assert f"| held (held out) | 60 | {100 * accuracy:.1f}\u00a0% |" in text
    for line in card["left"]:
        assert line["kind"] in text
    assert "No epsilon" in text and "Unsigned" in text and "90.0\u00a0%" in text
    assert all(digest in text for name, digest in card["files"].items() if name != "model-card.md")
    assert all(f"\n- {limit[:20]}" in text for limit in card["limits"])


def test_sums_cover_the_files_and_find_changes(finished):
    card = read_card(finished)
    names = {"config.toml", "records.jsonl", "result.json", "calibration.json", "model.safetensors"}
    assert set(card["files"]) == names | {"model-card.md"}
    for name, expected in card["files"].items():
        assert hashlib.sha256((finished / name).read_bytes()).hexdigest() == expected
    assert changed_files(finished, card) == []
    before = (finished / "model-card.md").read_text()
    (finished / "model-card.md").write_text(before.replace("held out", "held 0ut"))
    assert changed_files(finished, card) == ["model-card.md"]
    (finished / "model-card.md").unlink()
    assert changed_files(finished, card) == ["model-card.md"]
    write_model_card(finished)
    assert changed_files(finished, read_card(finished)) == []


def test_limits_follow_from_the_numbers(finished):
    run = read_run(finished)
    card = model_card(run)
    said = " ".join(card["limits"])
    assert "Subgroups" in said and "No attack" in said and "‘held’ (60)" in said
    for score in run.final["scores"]:
        if score["split"] == "target":
            score["conformal"]["aps"]["0.9"]["widened"]["coverage"] = 0.5
    run.result["calibration"]["target"] = {"before": {"ece": 0.02}, "after": {"ece": 0.3}}
    run.result["metrics"]["in_domain"] = {"accuracy": 0.99}
    run.result["metrics"]["target"]["accuracy"] = 0.5
    run.result["selection"] = "oracle"
    worse = " ".join(model_card(run)["limits"])
    for text in ("50.0\u00a0% of cases", "ECE 2.0", "49 points below", "chosen on the held-out data itself"):
        assert text in worse and text not in said


def test_an_audit_of_this_run_is_told_and_of_another_not(finished, tmp_path):
    file = finished / "audit" / "audit.json"
    file.parent.mkdir()
    found = {"run_id": read_run(finished).result["run_id"], "finding": "12 images were rebuilt"}
    found["membership"] = {"finding": "AUC 0.61"}
    try:
        file.write_text(json.dumps(found))
        card = model_card(read_run(finished))
        assert card["audit"] == {"finding": "12 images were rebuilt", "membership": "AUC 0.61"}
        assert "audit/audit.json" in card["files"] and not any("attack" in each for each in card["limits"])
        file.write_text(json.dumps({**found, "run_id": "other"}))
        assert model_card(read_run(finished))["audit"] is None
        file.write_text("{}")
        with pytest.raises(UnseenError, match="run 'unseen audit' again"):
            model_card(read_run(finished))
    finally:
        file.unlink()
        file.parent.rmdir()


def test_every_finished_run_has_a_card_also_old_ones(any_run):
    run = read_run(any_run)
    if not run.finished:
        with pytest.raises(UsageError, match="no finished run"):
            write_model_card(any_run)
        return
    text = (write_model_card(any_run).with_suffix(".md")).read_text()
    assert "## Limits" in text and "<script>" not in text
    assert "Not calibrated, or not recorded" in text and "Not recorded." in text
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| :--"):
            assert line.endswith(" |")


def test_names_cannot_break_the_tables(make_run, nasty_names):
    folder = make_run(domains=nasty_names, classes=[*nasty_names, "[x](javascript:1)\n# new"])
    text = write_model_card(folder).with_suffix(".md").read_text()
    assert "a\\|b\\\\c" in text and "&lt;script>" in text and "\\[x\\]" in text
    assert "\n# new" not in text


def test_a_damaged_card_is_refused(finished, tmp_path):
    with pytest.raises(UsageError, match="'unseen card"):
        read_card(tmp_path)
    (tmp_path / "model-card.json").write_text('{"format": 1}')
    with pytest.raises(UnseenError, match="damaged or no model card"):
        read_card(tmp_path)


def test_quantities_have_their_own_words(tmp_path):
    rows = ["place,size,price"]
    rows += [f"{'abc'[number % 3]},{number},{3 * number + number % 7}" for number in range(90)]
    table = tmp_path / "prices.csv"
    table.write_text("\n".join(rows) + "\n")
    options = {"target": "price", "domain_column": "place", "rounds": 1, "validation": 0.3, "workers": 1}
    folder = train(table, hold_out="c", out=tmp_path / "run", **options).folder
    card, text = read_card(folder), (folder / "model-card.md").read_text()
    assert card["data"]["sources"] == {"a": 30, "b": 30}
    assert "It predicts a quantity. Input: 1 numbers per row." in text and "Intervals were fitted" in text
    assert "Pearson r | RMSE |" in text and "Probabilities" not in text.partition("## Limits")[0]
