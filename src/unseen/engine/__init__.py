"""Runs rounds: in this process, in worker processes; checkpoints, resume."""

from unseen.engine.base import Engine, NoAnswer, Reply
from unseen.engine.checkpoint import Checkpoint
from unseen.engine.choose import Hands, choose_hands, make_engine
from unseen.engine.experiment import UPDATE_DTYPES, Experiment, RoundStart, Workspace, choose_device
from unseen.engine.folder import RunFolder
from unseen.engine.listener import Listener
from unseen.engine.local import LocalEngine
from unseen.engine.records import Record, Records, read_records
from unseen.engine.rounds import Rounds, Schedule, judged, scores
from unseen.engine.states import StateStore

__all__ = [
    "UPDATE_DTYPES",
    "Checkpoint",
    "Engine",
    "Experiment",
    "Hands",
    "Listener",
    "LocalEngine",
    "NoAnswer",
    "Record",
    "Records",
    "Reply",
    "RoundStart",
    "Rounds",
    "RunFolder",
    "Schedule",
    "StateStore",
    "Workspace",
    "choose_device",
    "choose_hands",
    "judged",
    "make_engine",
    "read_records",
    "scores",
]
