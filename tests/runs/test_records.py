"""Records survive torn lines and crashes between checkpoints."""

from __future__ import annotations

import torch

from unseen.runs.records import Records, read_records


def test_records_survive_a_torn_line(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.append("round", round=1, loss=float("nan"), weights=torch.tensor([1.0, 2.0]))
    with path.open("ab") as file:
        file.write(b'{"event": "rou')
    assert read_records(path) == [{"event": "round", "round": 1, "loss": None, "weights": [1.0, 2.0]}]


def test_records_behind_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path)
    records.append("round", round=1)
    kept = records.bytes
    records.append("round", round=2)
    again = Records(path, keep_bytes=kept)
    again.append("round", round=2, second=True)
    assert [entry.get("second", False) for entry in read_records(path)] == [False, True]
    assert again.bytes == path.stat().st_size
