"""What really goes over the line, tapped: no sample, no label, no file name, and all of it is in the records.

The federation speaks plain HTTP here, or there would be nothing to read on its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from recording_proxy import RecordingProxy
from tiny_sites import tiny_job

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

pytestmark = pytest.mark.deployment
PIECE = 64


@pytest.fixture
def patients(images: Path) -> Path:
    """Images of site `a` whose file names tell something."""
    for place in sorted((images / "a").glob("*/*.png")):
        place.rename(place.with_name(f"patient-{place.parent.name}-{place.name}"))
    return images


def pieces(data: bytes, size: int = PIECE) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data) - size + 1, size)]


def samples(folder: Path) -> Iterator[bytes]:
    """Every image of a site in the forms in which it could leave: its file, its bytes, its numbers."""
    for place in folder.glob("*/*.png"):
        pixels = np.asarray(Image.open(place))
        yield place.read_bytes()
        for order in (pixels, pixels.transpose(2, 0, 1)):
            yield order.tobytes()
            yield (np.ascontiguousarray(order) / np.float32(255)).astype(np.float32).tobytes()
            yield ((np.ascontiguousarray(order) / np.float32(255) - 0.5) / 0.5).astype(np.float32).tobytes()


def test_nothing_but_what_the_records_name_goes_over_the_line(patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = tiny_job(patients, sources=("a",), rounds=1)
    with LocalFederation(patients, tmp_path / "federation", secure=False).start(("held",)) as federation:
        with RecordingProxy(federation.coordinator.address) as line:
            federation.start_site("a", superlink=line.address)
            run_on_flower(
                config, coordinator=federation.coordinator, out=out, terms=RoundPolicy(deadline=600.0)
            )
            sent = line.sent
        home = federation.home / "a"

    update = Checkpoint.load(RunFolder(out).checkpoint).weights.numpy().tobytes()
    found = [piece in sent for piece in pieces(update)]
    assert np.mean(found) > 0.9, "the tap must see what does travel: the only client's update"

    for sample in samples(patients / "a"):
        assert not any(piece in sent for piece in pieces(sample))
    assert b"patient" not in sent
    assert b".png" not in sent
    labels = np.repeat(np.arange(3), [len(list((patients / "a" / name).iterdir())) for name in "xyz"])
    for kind in (np.uint8, np.int32, np.int64, np.float32):
        assert labels.astype(kind).tobytes() not in sent

    ledger = [json.loads(row) for row in (home / "sent.jsonl").read_text(encoding="utf-8").splitlines()]
    (trained,) = [row for row in ledger if row["ask"] == "train"]
    (round_record,) = [
        record for record in read_records(RunFolder(out).records) if record["event"] == "round"
    ]
    left = {entry["kind"]: entry["bytes"] for entry in round_record["left"]}
    assert left["model weights"] == trained["values"]["model weights"] == len(update)
    assert set(trained["values"]) - {"model weights"} == {
        "number of samples, training loss, counts, diagnostics"
    }
    told = sum(row["bytes"] for row in ledger)
    envelopes = 40_000 * len(ledger)
    assert told <= len(sent) < told + envelopes, "beside what the ledger tells only Flower's envelopes travel"
