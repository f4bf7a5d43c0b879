"""Flipped bytes: random bytes of every kind of file are changed, and the program must notice.

    python benchmarks/flipped_bytes.py --out results/robustness/flipped_bytes.json

A flip is `noticed` if reading the file ends with one clear line, or if a cache is rebuilt. It is `without
effect` only if what the program reads is equal, to the last bit, to what it reads from the undamaged file
(blanks of a header, a comment). Anything else is `unnoticed`, or a `traceback`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from crash_points import SIDE, bench, found_federation, load_everything, train, write_images
from fault_injection import FINISHED, run_child
from measure import options, report

from unseen.errors import UnseenError

FLIPS = 1700
LARGEST_FLIP = 4
"""A damage is one to this many consecutive bytes."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it is, and what the program reads from it.

    read     returns the content as the program uses it, comparable with ==
    rebuilt  whether a damaged file is replaced instead of refused: a cache
    """

    find: Callable[[Path], Path]
    read: Callable[[Path], Any]
    rebuilt: bool = False


def tensors(values: dict[str, Any]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Describe tensors by their bytes, so that NaN equals itself."""
    return [
        (name, str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes())
        for name, value in sorted(values.items())
    ]


def read_checkpoint(root: Path) -> Any:
    from unseen.runs.checkpoint import Checkpoint
    from unseen.runs.folder import RunFolder

    found = vars(Checkpoint.load(RunFolder(root / "run").checkpoint))
    parts = {name: found.pop(name) for name in ("server", "protection", "average")}
    states = {name: found.pop(name) for name in ("weights", "selected")}
    return found | {"checked": True}, tensors(states), [tensors(part) for part in parts.values()]


def read_client_state(root: Path) -> Any:
    from unseen.runs.checkpoint import Checkpoint, StateStore
    from unseen.runs.folder import RunFolder

    files = RunFolder(root / "run")
    store = StateStore(files.client_states, Checkpoint.load(files.checkpoint).client_states)
    return [tensors(dict(store.read(client))) for client in sorted(store.versions)]


def read_model(root: Path) -> Any:
    from unseen.serving import load_model

    saved = load_model(root / "run" / "model.safetensors")
    return saved.card, tensors(dict(saved.network.state_dict()))


def read_records_of_run(root: Path) -> Any:
    from unseen.runs.reader import read_run

    return read_run(root / "run").records


def read_records_to_resume(root: Path) -> Any:
    from unseen.runs.checkpoint import Checkpoint
    from unseen.runs.folder import RunFolder
    from unseen.runs.records import Records

    files = RunFolder(root / "run")
    point = Checkpoint.load(files.checkpoint)
    return Records(files.records, keep_bytes=point.records_bytes, expected=point.records_sum).entries


def read_result(root: Path) -> Any:
    from unseen.runs.reader import read_run

    return read_run(root / "run").result


def read_config(root: Path) -> Any:
    from unseen.config import RunConfig

    return RunConfig.load_recorded(root / "run" / "config.toml")


def read_bench_results(root: Path) -> Any:
    from unseen.bench.results import read_results

    return read_results(root / "bench" / "results.jsonl")


def read_bench_grid(root: Path) -> Any:
    from unseen.bench.grid import Grid

    return Grid.from_toml(root / "bench" / "bench.toml")


def read_job(root: Path) -> Any:
    from unseen.bench.result_store import read_finished

    return read_finished(only(root / "bench" / "jobs", "*/config.toml").parent)


def read_images(root: Path) -> Any:
    from unseen.data import load_data
    from unseen.data.sources import DataRequest

    os.environ["UNSEEN_CACHE"] = str(root / "cache")
    data = load_data(DataRequest(str(root / "images"), image_size=SIDE))
    told = any("damaged" in note for note in data.notes)
    return Rebuilt((data.fingerprint, np.asarray(data.inputs).tobytes()), told=told)


def read_features(root: Path) -> Any:
    from unseen.training.feature_cache import BLOCK, _FeatureFile

    os.environ["UNSEEN_CACHE"] = str(root / "features")
    computed: list[int] = []

    def extract(block: int, view: int) -> Any:
        computed.append(block)
        values = np.random.default_rng(block).normal(size=(BLOCK, 5)).astype(np.float16)
        return values[: min(BLOCK, 100 - block * BLOCK)]

    found = _FeatureFile("features", (100, 1, 5)).fill(np.ones((2, 1), dtype=bool), extract, lambda *_: None)
    return Rebuilt(np.array(found).tobytes(), told=bool(computed))


def read_invitation(root: Path) -> Any:
    from unseen.deploy.identity.invitation import Invitation

    return Invitation.load(root / "federation" / "a.invitation")


def read_ledger(root: Path) -> Any:
    from unseen.deploy.site.ledger_chain import LEDGER, verify_ledger

    home = root / "federation" / "site"
    checked = verify_ledger(home, public=" ".join((home / "a.pub").read_text().split()[:2]))
    if checked.problem:
        raise UnseenError(checked.problem)
    return [json.loads(line) for line in (home / LEDGER).read_bytes().splitlines()]


@dataclass(frozen=True)
class Rebuilt:
    """What a cache gave, and whether it says that it was rebuilt."""

    content: Any
    told: bool


def only(folder: Path, pattern: str) -> Path:
    """Return the first file of a pattern."""
    return sorted(folder.glob(pattern))[0]


KINDS = {
    "checkpoint": Kind(lambda root: root / "run/checkpoints/latest.safetensors", read_checkpoint),
    "client state": Kind(lambda root: only(root / "run/checkpoints/clients", "*"), read_client_state),
    "model": Kind(lambda root: root / "run/model.safetensors", read_model),
    "records, read": Kind(lambda root: root / "run/records.jsonl", read_records_of_run),
    "records, resumed": Kind(lambda root: root / "run/records.jsonl", read_records_to_resume),
    "result": Kind(lambda root: root / "run/result.json", read_result),
    "configuration": Kind(lambda root: root / "run/config.toml", read_config),
    "checksums of a run": Kind(lambda root: root / "run/checksums.sha256", read_records_of_run),
    "results of a bench": Kind(lambda root: root / "bench/results.jsonl", read_bench_results),
    "grid of a bench": Kind(lambda root: root / "bench/bench.toml", read_bench_grid),
    "records of a bench's job": Kind(
        lambda root: only(root / "bench/jobs", "*/config.toml").with_name("records.jsonl"), read_job
    ),
    "invitation": Kind(lambda root: root / "federation/a.invitation", read_invitation),
    "ledger of a site": Kind(lambda root: root / "federation/site/sent.jsonl", read_ledger),
    "image cache, pixels": Kind(lambda root: only(root / "cache", "*-*.npy"), read_images, rebuilt=True),
    "image cache, description": Kind(
        lambda root: only(root / "cache", "*-*.json"), read_images, rebuilt=True
    ),
    "feature cache": Kind(
        lambda root: root / "features/features-features-1.npy", read_features, rebuilt=True
    ),
    "feature cache, checksums": Kind(
        lambda root: root / "features/features-features-1.sums.npy", read_features, rebuilt=True
    ),
}


def prepare(root: Path) -> None:
    """Write one file of every kind."""
    from unseen.deploy.site.ledger import append_refusal

    def work() -> None:
        os.environ["UNSEEN_CACHE"] = str(root / "cache")
        images = write_images(root / "images")
        train(images, root / "run")
        bench(images, root / "bench")
        found_federation(images, root / "federation")
        site = root / "federation" / "site"
        for number in range(5):
            append_refusal(site, f"request {number}", "not allowed here", key=site / "a.key")
        read_features(root)

    code, said = run_child(work)
    if code != FINISHED:
        raise SystemExit(f"the files could not be written: {said}")


def flip(content: bytes, generator: np.random.Generator) -> bytes:
    """Change one to four consecutive bytes at a random place; never to what they were."""
    damaged = bytearray(content)
    place = int(generator.integers(len(damaged)))
    for position in range(place, min(place + int(generator.integers(1, LARGEST_FLIP + 1)), len(damaged))):
        damaged[position] ^= int(generator.integers(1, 256))
    return bytes(damaged)


def judge(kind: Kind, root: Path, expected: Any) -> str:
    """Read a damaged file and say what became of it."""
    try:
        found = kind.read(root)
    except UnseenError as error:
        return "noticed" if "\n" not in str(error) else "traceback"
    except BaseException:
        traceback.print_exc()
        return "traceback"
    if not kind.rebuilt:
        return "without effect" if found == expected else "unnoticed"
    if found.content != expected.content:
        return "unnoticed"
    return "noticed" if found.told else "without effect"


def try_kind(name: str, root: Path, flips: int, generator: np.random.Generator) -> dict[str, int]:
    """Flip bytes of one kind of file, one damage at a time; the files are as before afterwards."""
    kind = KINDS[name]
    expected = kind.read(root)
    if kind.rebuilt:
        expected = replace(expected, told=False)
    path = kind.find(root)
    kept = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    verdicts: Counter[str] = Counter()
    for _ in range(flips):
        path.write_bytes(flip(kept[path], generator))
        verdict = judge(kind, root, expected)
        if verdict in ("unnoticed", "traceback"):
            shutil.copy(path, Path(tempfile.gettempdir()) / f"flipped-{name.replace(' ', '-')}")
        verdicts[verdict] += 1
        for file in path.parent.iterdir():
            if file.is_file() and file not in kept:
                file.unlink()
        for file, content in kept.items():
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
    return dict(verdicts)


def sweep(flips: int, names: list[str] | None = None, *, seed: int = 0) -> dict[str, dict[str, int]]:
    """Flip bytes of all kinds of files, equally often."""
    load_everything()
    generator = np.random.default_rng(seed)
    chosen = names or list(KINDS)
    with tempfile.TemporaryDirectory(prefix="unseen-flips-") as folder:
        root = Path(folder)
        prepare(root)
        found = {}
        for name in chosen:
            found[name] = try_kind(name, root, -(-flips // len(chosen)), generator)
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--flips", type=int, default=FLIPS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = sweep(given.flips, seed=given.seed)
    total: Counter[str] = Counter()
    for each in found.values():
        total.update(each)
    values = {"flips": total.total(), "kinds of files": len(found)}
    values |= {verdict: total[verdict] for verdict in ("noticed", "without effect", "unnoticed", "traceback")}
    report("Flipped bytes", values, found, given.out)
    sys.exit(bool(total["unnoticed"] + total["traceback"]))


if __name__ == "__main__":
    main()
