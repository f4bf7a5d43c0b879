"""Modules with a part for every domain, and a bank that travels with the weights, in worker processes."""

from __future__ import annotations

import pytest
import torch

from unseen.engine import RoundStart, SerialEngine
from unseen.engine.workers.pool import WorkerEngine
from unseen.methods._shared import add_to_bank
from unseen.methods.feddg.spectra import SPECTRA
from unseen.runs.checkpoint import StateStore


@pytest.mark.parametrize(("method", "settings"), [("copa", {}), ("feddg", {"window": 0.25})])
def test_workers_return_the_same_bits_as_one_process(method, settings, make_experiment, tmp_path):
    alone = SerialEngine(make_experiment(method, settings=settings), StateStore(tmp_path / "alone"))
    together = WorkerEngine(
        make_experiment(method, settings=settings),
        StateStore(tmp_path / "both"),
        workers=2,
        threads=1,
        max_clients=3,
    )
    try:
        found = [two_rounds(engine) for engine in (alone, together)]
        sets = alone.workspace.experiment.evaluation_sets("target")
        metrics = [engine.evaluate(found[0][0][1], sets)[0].metrics() for engine in (alone, together)]
    finally:
        together.close()
    (rows, replies), (other_rows, other_replies) = found
    assert torch.equal(rows, other_rows) and metrics[0] == metrics[1]
    for mine, theirs in zip(replies, other_replies, strict=True):
        assert mine.update.diagnostics == theirs.update.diagnostics
        assert mine.update.extras.keys() == theirs.update.extras.keys()
        assert all(torch.equal(value, theirs.update.extras[key]) for key, value in mine.update.extras.items())


def two_rounds(engine):
    """A round of all clients, then one with the bank (if any) that the first filled."""
    start, bank = engine.workspace.flat.read(), {}
    _, replies = engine.train([0, 1, 2], RoundStart(1, start))
    add_to_bank(
        bank, SPECTRA, [reply.client for reply in replies], [reply.update.extras for reply in replies]
    )
    rows, replies = engine.train([0, 1, 2], RoundStart(2, start, bank))
    assert all(reply.update.diagnostics for reply in replies)
    return rows.clone(), replies
