"""Pauses of a site between questions: short after an answer, as Flower's own without work."""

from __future__ import annotations

import pytest

from unseen.deploy.flower import supernode_program
from unseen.deploy.flower.supernode_program import FIRST_PAUSE, REPLY_PAUSE, Pauses


def test_pauses_double_up_to_flowers_own_and_start_again_after_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(supernode_program.time, "sleep", slept.append)
    pauses = Pauses()
    for seconds in (3, 3, 3, 3, 3, 3, 0.5, 0.5, 3, 3):
        pauses.sleep(seconds)
    idle = [FIRST_PAUSE, 0.5, 1.0, 2.0, 3, 3]
    assert slept == [*idle, REPLY_PAUSE, REPLY_PAUSE, FIRST_PAUSE, 0.5]
