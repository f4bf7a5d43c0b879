"""`unseen audit` on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unseen.config import RunConfig
from unseen.runner.run import run


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(data="rotated-digits", hold_out=("75",), rounds=1, batch_size=16, batches_per_epoch=1)
    return run(config, out=tmp_path_factory.mktemp("runs") / "digits", report=False).folder


QUICK = ("--against", "none", "--clients", 1, "--iterations", 2, "--restarts", 1)


def test_findings_are_told_and_the_page_is_beside_the_run(unseen, digits_run: Path):
    answer = unseen("audit", digits_run, *QUICK)
    assert answer.code == 0
    assert (
        "none: From one client's message, as the server reads it, no image was rebuilt (0 of 1)."
        in answer.out
    )
    assert f"Page: {digits_run / 'audit' / 'audit.html'}" in answer.out
    assert "contains training images" in answer.err
    assert (digits_run / "audit" / "audit.html").exists()


def test_json_goes_to_standard_output(unseen, digits_run: Path, tmp_path: Path):
    answer = unseen("audit", digits_run, *QUICK, "--out", tmp_path / "there", "--json")
    found = json.loads(answer.out)
    assert found["page"] == str(tmp_path / "there" / "audit.html")
    assert found["inversion"]["effort"]["iterations"] == 2


def test_wrong_use_has_its_own_exit_code(unseen, digits_run: Path):
    answer = unseen("audit", digits_run, "--against", "secure-sun")
    assert answer.code == 2
    assert "Did you mean 'secure-sum'?" in answer.err
