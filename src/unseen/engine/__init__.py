"""Runs rounds: in this process, in worker processes; checkpoints, resume."""

from unseen.engine.base import Engine, NoAnswer, Reply
from unseen.engine.experiment import UPDATE_DTYPES, Experiment, RoundStart, Workspace, choose_device
from unseen.engine.resources import Hands, choose_hands, make_engine
from unseen.engine.round_loop import Rounds, Schedule, judged, scores
from unseen.engine.serial import LocalEngine

__all__ = [
    "UPDATE_DTYPES",
    "Engine",
    "Experiment",
    "Hands",
    "LocalEngine",
    "NoAnswer",
    "Reply",
    "RoundStart",
    "Rounds",
    "Schedule",
    "Workspace",
    "choose_device",
    "choose_hands",
    "judged",
    "make_engine",
    "scores",
]
