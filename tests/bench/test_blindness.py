"""The held-out domain's labels are out of reach of every choice: noise in their place changes none."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import LEAVE_ONE_DOMAIN_OUT, Grid
from unseen.bench.result_store import ResultStore
from unseen.bench.results import chosen_rounds
from unseen.bench.runner import inspect_data, run_bench
from unseen.bench.search import choose_trial
from unseen.bench.workers import Placement

TARGET = "north"


def write_table(path, *, noise):
    """Three domains of 40 rows; `noise` draws the held-out domain's labels anew."""
    generator, other = np.random.default_rng(0), np.random.default_rng(1)
    path.parent.mkdir()
    lines = ["domain,target,a,b,c"]
    for shift, domain in enumerate(("south", "west", TARGET)):
        for _ in range(40):
            label = int(generator.integers(3))
            a, b, c = generator.normal([label, shift - label, 0.3 * shift])
            if noise and domain == TARGET:
                label = int(other.integers(3))
            lines.append(f"{domain},{'xyz'[label]},{a:.4f},{b:.4f},{c:.4f}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """The same bench with the true labels and with noise: a search under both honest rules."""
    found = {}
    for name, noise in (("true", False), ("noise", True)):
        table = tmp_path_factory.mktemp(name) / "data" / "table.csv"
        write_table(table, noise=noise)
        common = {"data": str(table), "rounds": 4, "batches_per_epoch": 2, "batch_size": 8, "test": 0.0}
        grid = Grid(
            common={**common, "validation": 0.3, "lr": 0.05},
            methods={"fedprox": {}},
            hold_out=(TARGET,),
            selection="lodo",
            search=3,
        )
        grid = inspect_data(grid, Placement())
        folder = BenchFolder(table.parent / "bench")
        outcome = run_bench(grid, folder, workers=1)
        assert not outcome.failed and len(outcome.results) == 1
        found[name] = (grid, ResultStore(folder.work), outcome)
    return found


def choices(grid, shelf, outcome):
    """Every setting and every round that was chosen."""
    cell = ("fedprox", TARGET, "")
    settings = {
        rule: choose_trial(grid, cell, shelf, rule=rule)
        for rule in ("source-validation", LEAVE_ONE_DOMAIN_OUT)
    }
    rounds = [chosen_rounds(entry, shelf) for entry in outcome.plan.entries]
    return settings, rounds


def test_noise_in_the_held_out_labels_changes_no_choice(benches):
    settings, rounds = choices(*benches["true"])
    noisy_settings, noisy_rounds = choices(*benches["noise"])
    assert settings == noisy_settings
    assert len(rounds) == 1
    for mine, theirs in zip(rounds, noisy_rounds, strict=True):
        assert set(mine) == {"source-validation", "last", "oracle", LEAVE_ONE_DOMAIN_OUT}
        honest = set(mine) - {"oracle"}
        assert {rule: mine[rule] for rule in honest} == {rule: theirs[rule] for rule in honest}


def test_the_noise_was_seen_where_it_may_be(benches):
    """Otherwise the test above would say nothing: the reported numbers must differ."""
    true, noise = (benches[name][2].results for name in ("true", "noise"))
    for mine, theirs in zip(true, noise, strict=True):
        assert mine.curve != theirs.curve and mine.accuracy != theirs.accuracy
        assert mine.job == theirs.job
