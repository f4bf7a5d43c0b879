"""An early end is printed with its reason, and stays when the progress line is removed."""

from __future__ import annotations

import io

from rich.console import Console

from unseen.cli.progress import LiveProgress


def test_an_early_end_is_printed():
    console = Console(file=io.StringIO(), width=200)
    with LiveProgress(console, label="fedavg") as progress:
        progress.on_train_start(first_round=1, rounds=9, samples=10)
        progress.on_record({"event": "stop", "round": 4, "rounds": 9, "reason": "nothing improved"})
    assert console.file.getvalue() == "stopped after round 4 of 9: nothing improved\n"
