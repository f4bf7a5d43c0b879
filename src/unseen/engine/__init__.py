"""Engines, which run clients in this process or in worker processes, and the server loop."""

from unseen.engine.base import Engine, NoAnswer, Reply
from unseen.engine.experiment import UPDATE_DTYPES, Experiment, RoundStart, Workspace
from unseen.engine.resources import WorkerConfig, choose_workers, make_engine
from unseen.engine.round_loop import Schedule, ServerLoop
from unseen.engine.round_records import evaluation_record, scores
from unseen.engine.serial import SerialEngine

__all__ = [
    "UPDATE_DTYPES",
    "Engine",
    "Experiment",
    "NoAnswer",
    "Reply",
    "RoundStart",
    "Schedule",
    "SerialEngine",
    "ServerLoop",
    "WorkerConfig",
    "Workspace",
    "choose_workers",
    "evaluation_record",
    "make_engine",
    "scores",
]
