"""Crash points: every single write of train, resume, bench and of the image cache goes wrong once.

    python benchmarks/crash_points.py --out results/robustness/crash_points.json
    python benchmarks/crash_points.py --scenario train --every 2 --out train.json
    python benchmarks/crash_points.py --merge train.json resume.json --out crash_points.json

Each point is a fresh folder in which one operation on files (open, write, flush, rename, delete, make a
folder) fails, or all from there on, or the process is killed there; the command is then given again. Counted
are lost rounds (the second call cannot go on), silent differences (it ends with other weights, records or
results than an undisturbed run), tracebacks, and temporary files that a failed call left. Times are not
compared, nor the notes of a run, where it tells that its cache could not be written.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fault_injection import FINISHED, KILLED, KINDS, REFUSED, TRACEBACK, Faults, run_child
from measure import options, report
from PIL import Image

DOMAINS, CLASSES, SIDE, PER_CLASS = ("a", "b", "held"), ("dark", "light"), 8, 6
OPTIONS: dict[str, Any] = {
    **{"hold_out": "held", "rounds": 2, "batch_size": 4, "workers": 1, "threads": 1, "image_size": SIDE},
    **{"method": "scaffold", "model": "mnist-cnn", "lr": 0.05, "effort": "none"},
}
TIMES = ("seconds", "time", "notes")
"""Entries of records and results that no two runs share, or that tell of the fault."""


def write_images(folder: Path) -> Path:
    """Write a tiny folder domain/class/image."""
    generator = np.random.default_rng(0)
    for domain in DOMAINS:
        for level, label in enumerate(CLASSES):
            place = folder / domain / label
            place.mkdir(parents=True)
            for number in range(PER_CLASS):
                pixels = generator.integers(60 * level, 120 + 60 * level, (SIDE, SIDE, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def train(images: Path, out: Path, *, stop: int = 0) -> None:
    """Train, or go on; with `stop`, end after the records of that round, before its checkpoint."""
    from unseen.callbacks.base import Callback, StopTrainingError
    from unseen.config import RunConfig
    from unseen.runner.run import run

    class Stop(Callback):
        def on_record(self, record: dict[str, Any]) -> None:
            if stop and record["event"] == "evaluation" and record["round"] == stop:
                raise StopTrainingError("stopped")

    config = RunConfig.from_mapping({"data": str(images), **OPTIONS})
    run(config, out=out, resume=True, report=False, callbacks=[Stop()])


def bench(images: Path, out: Path) -> None:
    """Run a bench of one job in this process instead of in workers; jobs that failed are tried again."""
    from unseen.bench import runner
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.bench_job import BenchJob
    from unseen.bench.grid import Grid
    from unseen.bench.results import write_results
    from unseen.bench.workers import Failed, Task, _attempt, _LoadedData

    class Silent:
        def send(self, message: object) -> None:
            """Ignore progress."""

    failures: list[Failed] = []

    class InlinePool(runner.JobPool):
        def run(self, jobs: list[BenchJob]) -> None:  # type: ignore[override]
            for job in jobs:
                task = Task(self.placement.apply(job.config), self.folder.make_ready(job))
                answer = _attempt(task, Silent(), _LoadedData())  # type: ignore[arg-type]
                if isinstance(answer, Failed):
                    failures.append(answer)
                    self.folder.note_failure(job, answer.reason, answer.details)

    runner.JobPool = InlinePool  # type: ignore[misc]
    common = {"data": str(images), **{key: value for key, value in OPTIONS.items() if key not in _PLACED}}
    grid = Grid.from_mapping({"hold_out": "held", "common": common, "methods": {"fedavg": {}}})
    place = BenchFolder(out)
    outcome = runner.run_bench(grid.on(DOMAINS), place, workers=1, retry_failed=True)
    write_results(place.results, outcome.results)
    for answer in failures:
        if answer.details:
            raise AssertionError(answer.details)


_PLACED = ("hold_out", "workers", "threads", "effort", "method")


def decode(images: Path, out: Path) -> None:
    """Load the images through the cache, and keep what was loaded."""
    from unseen.data import load_data
    from unseen.data.sources import DataRequest

    data = load_data(DataRequest(str(images), image_size=SIDE))
    kept = json.dumps([data.fingerprint, int(np.asarray(data.inputs, dtype=np.int64).sum())])
    out.mkdir(exist_ok=True)
    os.close(os.open(out / "done", os.O_CREAT | os.O_WRONLY))
    (out / "done").write_text(kept)


def outcome_of_run(folder: Path) -> Any:
    """Read what a run ended with: weights, records and result, without times."""
    from unseen.runs.checkpoint import Checkpoint
    from unseen.runs.folder import RunFolder
    from unseen.runs.reader import read_run
    from unseen.tensor_files import load_tensors

    files, found = RunFolder(folder), read_run(folder)
    point = Checkpoint.load(files.checkpoint)
    model = {name: tensor.tolist() for name, tensor in load_tensors(files.model).tensors.items()}
    told = [record for record in found.records if record["event"] != "resume"]
    return without_times([point.weights.tolist(), point.round, model, told, found.result])


def outcome_of_bench(folder: Path) -> Any:
    """Read what a bench ended with, without times."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return without_times([json.loads(line) for line in lines])


def outcome_of_cache(folder: Path) -> Any:
    """Read what was loaded."""
    return (folder / "done").read_text()


def without_times(value: Any) -> Any:
    """Leave out entries that depend on the clock."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def found_federation(images: Path, out: Path) -> None:
    """Create a coordinator's home, an invitation, a site's home with its policy, and admit the site."""
    from unseen.deploy.coordinator.coordinator_home import open_home
    from unseen.deploy.identity.invitation import Invitation
    from unseen.deploy.identity.members import Members
    from unseen.deploy.site.site_home import open_site
    from unseen.deploy.site.site_policy import read_policy, write_policy

    del images
    home = open_home(out / "coordinator", hosts=("localhost",), port=19000)
    if not (out / "a.invitation").exists():
        Invitation.issue("a", home.address, home.certificates()).save(out / "a.invitation")
    site = open_site(out / "site", Invitation.load(out / "a.invitation"))
    write_policy(site.path)
    read_policy(site.path)
    if Members(home.path).get("a") is None:
        Members(home.path).add("a", " ".join(site.key.line.split()[:2]))


def outcome_of_federation(folder: Path) -> Any:
    """Check that keys, certificates and invitation belong together, and list the files with their modes."""
    from unseen.deploy.coordinator.coordinator_home import open_home
    from unseen.deploy.identity.invitation import Invitation
    from unseen.deploy.identity.keys import load_private_key
    from unseen.deploy.identity.members import Members

    home = open_home(folder / "coordinator")
    (member,) = Members(home.path)
    key = load_private_key(folder / "site" / "a.key")
    files = [(str(path.relative_to(folder)), path.stat().st_mode) for path in sorted(folder.rglob("[!.]*"))]
    signed = Invitation.load(folder / "a.invitation").is_signed()
    trusted = (folder / "site" / "ca.crt").read_bytes() == home.certificates().ca.read_bytes()
    return [signed, trusted, member.key.split()[1] == key.line.split()[1], files]


@dataclass(frozen=True)
class Scenario:
    """A command, what it ends with, and the state of the folder before it."""

    work: Callable[[Path, Path], None]
    outcome: Callable[[Path], Any]
    before: Callable[[Path, Path], None] | None = None


def half_trained(images: Path, out: Path) -> None:
    """Train until the second round is evaluated but not in the checkpoint."""
    from unseen.callbacks.base import StopTrainingError

    try:
        train(images, out, stop=2)
    except StopTrainingError:
        return


SCENARIOS = {
    "train": Scenario(train, outcome_of_run),
    "resume": Scenario(train, outcome_of_run, before=half_trained),
    "bench": Scenario(bench, outcome_of_bench),
    "image cache": Scenario(decode, outcome_of_cache),
    "up, invite, join": Scenario(found_federation, outcome_of_federation),
}


class Sweep:
    """All crash points of one scenario."""

    def __init__(self, name: str, images: Path, place: Path) -> None:
        self.scenario, self.images, self.place = SCENARIOS[name], images, place
        self.prepared = place / "prepared"
        if self.scenario.before is not None:
            self._expect(lambda: self.scenario.before(images, self.prepared / "out"), self.prepared)  # type: ignore[misc]
        whole = self._start("whole")
        faults = Faults(whole)
        code, said = run_child(lambda: self._work(whole), faults)
        if code != FINISHED:
            raise SystemExit(f"{name} does not work undisturbed: {said}")
        self.operations = int(said)
        self.expected = self.scenario.outcome(whole / "out")

    def try_point(self, at: int, kind: str) -> dict[str, Any]:
        """Let one operation go wrong, give the command again, and compare what it ends with."""
        root = self._start("point")
        first, said = run_child(lambda: self._work(root), Faults(root, at=at, kind=kind))
        left = [] if first == KILLED else [path.name for path in root.rglob(".*.part*")]
        second, again = run_child(lambda: self._work(root))
        verdict = "as undisturbed"
        if TRACEBACK in (first, second) or min(first, second) < 0:
            verdict = "traceback"
        elif second != FINISHED:
            verdict = "lost"
        elif self.scenario.outcome(root / "out") != self.expected:
            verdict = "silent difference"
        elif left and first == REFUSED and kind == "fail":
            verdict = "temporary file left"
        told = (
            {}
            if verdict == "as undisturbed"
            else {"first": said[-2000:], "second": again[-2000:], "left": left}
        )
        return {"at": at, "kind": kind, "ended": first, "verdict": verdict, **told}

    def _start(self, name: str) -> Path:
        root = self.place / name
        shutil.rmtree(root, ignore_errors=True)
        if self.prepared.exists():
            shutil.copytree(self.prepared, root)
        else:
            root.mkdir(parents=True)
        return root

    def _work(self, root: Path) -> None:
        os.environ["UNSEEN_CACHE"] = str(root / "cache")
        self.scenario.work(self.images, root / "out")

    def _expect(self, work: Callable[[], None], root: Path) -> None:
        root.mkdir(parents=True)

        def go() -> None:
            os.environ["UNSEEN_CACHE"] = str(root / "cache")
            work()

        code, said = run_child(go)
        if code != FINISHED:
            raise SystemExit(f"the preparation failed: {said}")


def load_everything() -> None:
    """Import once what the children need."""
    import torch

    import unseen.bench.runner
    import unseen.runner.run  # noqa: F401

    torch.set_num_threads(1)


def sweep(
    names: list[str], *, start: int = 1, every: int = 1, one_kind_each: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Try every `every`-th operation of these scenarios, from `start` on.

    one_kind_each  try one kind of fault at each, in turn, instead of all
    """
    load_everything()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="unseen-faults-") as folder:
        images = write_images(Path(folder) / "images")
        for name in names:
            points = Sweep(name, images, Path(folder) / name.replace(" ", "-"))
            tried = [(at, kind) for at in range(start, points.operations + 1, every) for kind in KINDS]
            if one_kind_each:
                tried = tried[:: len(KINDS) + 1]
            found[name] = [points.try_point(at, kind) for at, kind in tried]
            counted = Counter(point["verdict"] for point in found[name])
            print(f"{name}: {points.operations} operations, {dict(counted)}", file=sys.stderr, flush=True)
    return found


def merge(records: list[Path], out: Path | None) -> None:
    """Add up records of single scenarios, which may have been tried at different times."""
    values: Counter[str] = Counter()
    parts = [json.loads(record.read_text()) for record in records]
    for part in parts:
        values.update(part["values"])
    wrong: dict[str, list[Any]] = defaultdict(list)
    for part in parts:
        for name, points in part["measurements"].items():
            wrong[name] += points
    report("Crash points", dict(values), wrong, out)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), action="append")
    parser.add_argument("--every", type=int, default=1, help="try every N-th operation only")
    parser.add_argument("--start", type=int, default=1, help="number of the first operation that is tried")
    parser.add_argument("--merge", type=Path, nargs="+", help="add up earlier records instead of trying")
    given = parser.parse_args()
    if given.merge:
        merge(given.merge, given.out)
        return
    found = sweep(given.scenario or list(SCENARIOS), start=given.start, every=given.every)
    points = [point for each in found.values() for point in each]
    verdicts = Counter(point["verdict"] for point in points)
    values: dict[str, Any] = {f"crash points: {name}": len(each) for name, each in found.items()}
    values |= {
        "crash points": len(points),
        "killed": sum(point["ended"] == KILLED for point in points),
        "ended with one line": sum(point["ended"] == REFUSED for point in points),
        "finished in spite of the fault": sum(point["ended"] == FINISHED for point in points),
        "lost rounds": verdicts["lost"],
        "silent differences": verdicts["silent difference"],
        "tracebacks": verdicts["traceback"],
        "temporary files left": verdicts["temporary file left"],
    }
    wrong = {
        name: [point for point in each if point["verdict"] != "as undisturbed"]
        for name, each in found.items()
    }
    report("Crash points", values, wrong, given.out)
    sys.exit(bool(verdicts.total() - verdicts["as undisturbed"]))


if __name__ == "__main__":
    main()
