"""`unseen audit` from a run folder to its files, and what it says of what it cannot do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unseen.audit import AuditPlan, audit_run
from unseen.audit.audit_page import audit_page, to_json, write_audit
from unseen.audit.audit_summary import headline
from unseen.audit.gradient_inversion import AttackEffort
from unseen.cli.audit_command import parse_protection
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.runner.run import run

QUICK = AttackEffort(iterations=60, restarts=1)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(data="rotated-digits", hold_out=("75",), rounds=1, batch_size=16, batches_per_epoch=3)
    return run(config, out=tmp_path_factory.mktemp("runs") / "digits", report=False).folder


def test_an_audit_writes_page_numbers_and_images_into_its_folder_only(digits_run: Path, tmp_path: Path):
    before = sorted(digits_run.rglob("*"))
    plan = AuditPlan(clients=1, against={"none": {}, "secure-sum": {}}, effort=QUICK)
    said: list[tuple[str, int, int]] = []
    audit = audit_run(digits_run, plan=plan, progress=lambda *told: said.append(told))
    page = write_audit(audit, tmp_path / "out")
    assert sorted(path.name for path in page.parent.iterdir()) == ["audit.html", "audit.json", "audit.png"]
    assert sorted(digits_run.rglob("*")) == before
    assert said[-1] == ("attacking secure-sum", 240, 240)

    text = page.read_text()
    assert "Contains training images" in text
    assert "http" not in re.sub(r"http-equiv|data:[^\"]*", "", text)
    nasty = '"><script>alert(1)</script>'
    escaped = audit_page(replace(audit, data=nasty, refused={nasty: nasty}))
    assert nasty not in escaped
    assert escaped.count("&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;") == 3
    found = json.loads((page.parent / "audit.json").read_text())
    assert "base64" not in json.dumps(found)
    plain, masked = found["inversion"]["protections"]
    assert [view["view"] for view in plain["views"]] == ["message", "merged"]
    assert plain["views"][0]["rebuilt"] == 1
    assert masked["views"][0]["rebuilt"] == 0
    assert "reveal them: 1 of 1" in found["finding"]
    assert "cannot read one client's message" in masked["findings"][0]
    checks = {(each["protection"], each["finding"]): each["verdict"] for each in found["protocol"]}
    assert checks["secure-sum", "P4"] == "held" and checks["none", "P4"] == "not applicable"
    assert "Attacks on the protocol" in text and "A sum over two clients was not opened." in text
    assert found["membership"]["members"] > 100
    assert 0 <= found["membership"]["auc"]["low"] <= found["membership"]["auc"]["high"] <= 1


def test_the_same_audit_twice_gives_the_same_numbers(digits_run: Path):
    plan = AuditPlan(clients=1, at="end", against={"none": {}}, effort=AttackEffort(iterations=5, restarts=1))
    first, second = (to_json(audit_run(digits_run, plan=plan)) for _ in range(2))
    assert first == second


def test_a_protection_that_cannot_serve_is_named_with_the_reason(tmp_path: Path):
    config = RunConfig(
        data="rotated-digits",
        hold_out=("75",),
        method="csac",
        rounds=1,
        batch_size=16,
        batches_per_epoch=1,
        settings={"acquisition_epochs": 1},
    )
    folder = run(config, out=tmp_path / "run", report=False).folder
    plan = AuditPlan(
        clients=1, against={"none": {}, "secure-sum": {}}, effort=AttackEffort(iterations=1, restarts=1)
    )
    audit = audit_run(folder, plan=plan)
    assert [each.name for each in audit.audited] == ["none"]
    assert "every client's own update" in audit.refused["secure-sum"]


def test_a_table_is_tested_for_members_only(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(90, 2))
    lines = [f"{'abc'[row % 3]},{x:.3f},{'yes' if y > 0 else 'no'}" for row, (x, y) in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join(["domain,x,target", *lines]) + "\n")
    config = RunConfig(data=str(tmp_path / "t.csv"), hold_out=("c",), rounds=1, batch_size=8)
    audit = audit_run(run(config, out=tmp_path / "run", report=False).folder)
    assert audit.impossible
    assert not audit.audited
    assert audit.membership is not None
    assert "AUC" in headline(audit)
    assert "Not tried" in write_audit(audit, tmp_path / "out").read_text()
    assert not (tmp_path / "out" / "audit.png").exists()


def test_wrong_use_is_told_in_one_line(digits_run: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="contains no finished run"):
        audit_run(tmp_path)
    with pytest.raises(UsageError, match=r"secure-sum"):
        AuditPlan(against={"secure-sun": {}})
    with pytest.raises(UsageError, match="moment"):
        AuditPlan(at="middle")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--images asks for 100000"):
        audit_run(digits_run, plan=AuditPlan(images=100_000))
    with pytest.raises(UsageError, match="at least 1"):
        AuditPlan(images=0)


def test_protections_are_read_with_their_settings():
    assert parse_protection("none") == ("none", {})
    assert parse_protection("dp-clients:epsilon=8,clip=0.5") == (
        "dp-clients",
        {"epsilon": "8", "clip": "0.5"},
    )
    with pytest.raises(UsageError, match="names no protection"):
        parse_protection(":epsilon=8")


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_vision_transformer_with_lora_is_audited(make_tiny_data, tmp_path: Path, at: str):
    config = RunConfig(
        **{"data": "tiny", "hold_out": ("held",), "rounds": 1, "batch_size": 4, "workers": 1},
        **{"model": "mini-vit", "train": "lora", "lora_rank": 2},
    )
    folder = run(config, out=tmp_path / "run", report=False, data=make_tiny_data()).folder
    effort = AttackEffort(iterations=5, restarts=1)
    plan = AuditPlan(clients=1, at=at, against={"none": {}}, effort=effort)
    audit = audit_run(folder, plan=plan, data=make_tiny_data())
    assert len(audit.audited) == 1
