"""Fuzzing of messages: at least ten thousand changed messages of every kind, and how each one ended.

python benchmarks/fuzz_messages.py --out results/fuzzing/messages.json

Answers of lying sites go through the real coordinator, which has honest sites beside them; requests of a
lying coordinator go to a real site; both also as bytes that were changed on the wire. A message is `uncaught`
if it ends in anything but a fault, a refusal or an ordinary answer. The changes are those of tests/hostile.
"""

# ruff: noqa: E402

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from measure import options, report

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "hostile"), str(TESTS / "deploy")]

from fuzzed_messages import ReplayGrid, fuzz, fuzz_record, read_or_refuse
from judged_sites import ALLOWS, train_two
from tiny_sites import LoopbackGrid, make_images, tiny_job, write_policy

from unseen.callbacks.base import Callback, StopTrainingError
from unseen.config import RunConfig
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.coordinator.judge_federation import JudgeRequest, coordinate_judging
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site_summary import SiteSummary
from unseen.errors import UnseenError
from unseen.judging.judge_sites import JudgeOptions
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records

SEALED_SITES = ("a", "b", "c", "d", "e", "f", "g", "held")
SEALED: dict[str, dict[str, Any]] = {
    "secure-sum": {},
    "secure-sum,dp-clients": {"noise": 1.0},
    "secure-sum,dp-samples": {"noise": 1.0},
}
"""Protections whose messages are keys, shares and masked rows, with their settings."""
TERMS = RoundPolicy(deadline=60.0)


class FuzzingGrid(LoopbackGrid):
    """Live sites, of which two lie in turn: their answers to some kinds of questions are changed."""

    def __init__(self, *arguments: Any, random: Random, kinds: tuple[str, ...], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.random, self.kinds, self.counts = random, kinds, Counter[str]()
        self.spoil = self._spoil

    def _spoil(self, site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
        kind = question.header["ask"]
        if site not in ("a", "b") or kind not in self.kinds or self.random.random() < 0.4:
            return answer
        self.counts[kind] += 1
        return fuzz(answer, self.random)


def fuzz_answers(images: Path, folder: Path, method: str, count: int, seed: int) -> Counter[str]:
    """Send fuzzed updates and sums to the coordinator, in one run with honest sites."""
    lying = [("a", "train"), ("a", "evaluate"), ("held", "evaluate")]
    grid = ReplayGrid(images, folder / "sites", random=Random(seed), fuzzed=lying, limit=count)
    job = tiny_job(images, method=method, rounds=-(-count // len(lying)), batches_per_epoch=1)
    ended: Counter[str] = Counter()
    ended[play(grid, job, folder / "run")] += 1
    records = read_records(RunFolder(folder / "run").records)
    ended["faults"] = sum(each["event"] == "fault" for each in records)
    ended["messages"] = sum(grid.counts.values())
    return ended


def fuzz_sealed(images: Path, folder: Path, protect: str, count: int, seed: int) -> Counter[str]:
    """Send so many fuzzed keys, shares and masked rows; a run that a refusal ends is resumed."""
    names = [path.name for path in images.iterdir()]
    for name in set(SEALED_SITES) - set(names):
        (images / name).symlink_to(images / "c")
    random, ended = Random(seed), Counter[str]()
    grid = FuzzingGrid(images, folder / "sites", SEALED_SITES, random=random, kinds=("train", "consult"))
    job = tiny_job(
        images,
        rounds=count,
        batches_per_epoch=1,
        protect=protect,
        protect_settings=SEALED[protect],
        evaluate_every=count,
    )
    tries = 0
    while sum(grid.counts.values()) < count:
        ended[play(grid, job, folder / "run", resume=tries > 0, callbacks=EndAfter(grid, count))] += 1
        tries += 1
    ended["messages"] = sum(grid.counts.values())
    return ended


def fuzz_judging(images: Path, folder: Path, count: int, seed: int) -> dict[str, Counter[str]]:
    """Send fuzzed counts and findings to a coordinator that judges models, and fuzzed requests to a site."""
    models = tuple(map(str, train_two(images, folder / "runs")))
    everyone = ("a", "b", "c", "held")
    found = {}
    # who lies about its name in the census is not waited for
    for kind, wanted in (("census", ("c",)), ("judge", everyone)):
        lying = [(site, kind) for site in ("a", "b", "held")]
        grid = ReplayGrid(images, folder / kind, random=Random(seed), fuzzed=lying, limit=count)
        found[f"answers, judging, {kind}"] = ended = Counter[str]()
        for site in grid.sites:
            write_policy(site.home, ALLOWS)
        request = JudgeRequest(models, JudgeOptions(threads=1), sites=wanted)
        while sum(grid.counts.values()) < count:
            try:
                coordinate_judging(grid, request, out=folder / "out", terms=TERMS)  # type: ignore[arg-type]
                ended["judgements"] += 1
            except Exception as error:
                logging.exception("uncaught")
                ended[f"uncaught {type(error).__name__}"] += 1
        ended["messages"] = sum(grid.counts.values())
    honest = LoopbackGrid(images, folder / "honest")
    for site in honest.sites:
        write_policy(site.home, ALLOWS)
    request = JudgeRequest(models, JudgeOptions(threads=1), sites=everyone)
    coordinate_judging(honest, request, out=folder / "out", terms=TERMS)  # type: ignore[arg-type]
    return found | {"requests to a site, judging": fuzz_requests(honest, count, seed)}


class EndAfter(Callback):
    """Ends a run after so many fuzzed messages."""

    def __init__(self, grid: FuzzingGrid, count: int) -> None:
        self.grid, self.count = grid, count

    def on_record(self, record: Record) -> None:
        """Stop once there were enough."""
        if record["event"] == "round" and sum(self.grid.counts.values()) >= self.count:
            raise StopTrainingError


def play(grid: Any, job: RunConfig, out: Path, **more: Any) -> str:
    """Run a job; say how it ended."""
    try:
        coordinate(grid, job, out=out, terms=TERMS, **{"resume": False, **more})
    except UnseenError:
        return "runs ended with one line"
    except Exception as error:
        logging.exception("uncaught")
        return f"uncaught {type(error).__name__}"
    return "finished"


def honest_messages(images: Path, folder: Path, protects: Sequence[str]) -> LoopbackGrid:
    """Exchange all kinds of messages once, with each protection."""
    grid = LoopbackGrid(images, folder / "sites")
    for protect in protects:
        settings = SEALED.get(protect, {})
        job = tiny_job(
            images,
            rounds=1,
            batches_per_epoch=1,
            protect=protect,
            protect_settings=settings,
            evaluate_every=1,
        )
        coordinate(grid, job, out=folder / protect, resume=False, terms=TERMS)  # type: ignore[arg-type]
    return grid


def fuzz_requests(grid: LoopbackGrid, count: int, seed: int) -> Counter[str]:
    """Send fuzzed requests to a site."""
    random, ended = Random(seed), Counter[str]()
    asked = [question for site, question, _ in grid.log if site == "a"]
    for _ in range(count):
        ended["messages"] += 1
        try:
            answer = grid.sites[0].answer(fuzz(random.choice(asked), random))
            ended["answered with an error" if "error" in answer.header else "answered"] += 1
        except Exception as error:
            ended[f"uncaught {type(error).__name__}"] += 1
    return ended


def fuzz_wire_and_census(grid: LoopbackGrid, count: int, seed: int) -> dict[str, Counter[str]]:
    """Read messages whose bytes were changed, and fuzzed summaries."""
    random, wire, census = Random(seed), Counter[str](), Counter[str]()
    summaries = [answer for _, question, answer in grid.log if question.header["ask"] == "census"]
    for _ in range(count):
        wire["messages"] += 1
        try:
            wire[
                "read" if read_or_refuse(fuzz_record(random.choice(grid.log)[2], random)) else "refused"
            ] += 1
        except Exception as error:
            wire[f"uncaught {type(error).__name__}"] += 1
        census["messages"] += 1
        try:
            SiteSummary.from_dict(fuzz(random.choice(summaries), random).header)
            census["read"] += 1
        except UnseenError:
            census["refused"] += 1
        except Exception as error:
            census[f"uncaught {type(error).__name__}"] += 1
    return {"records changed on the wire": wire, "summaries of sites": census}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--messages", type=int, default=11_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    coordinator.SETTLED_SECONDS = 0.0
    started, seed, part = time.perf_counter(), chosen.seed, chosen.messages // 10
    found: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = make_images(folder / "images")
        for method in ("fedavg", "mdfl", "fednova"):
            found[f"answers, {method}"] = fuzz_answers(images, folder / method, method, part, seed)
            print(method, dict(found[f"answers, {method}"]), file=sys.stderr, flush=True)
        grid = honest_messages(images, folder / "honest", ("none", "secure-sum"))
        found |= fuzz_wire_and_census(grid, 5 * part // 2, seed)
        found["requests to a site"] = fuzz_requests(grid, part // 2, seed)
        judged = fuzz_judging(images, folder / "judging", part // 2, seed)
        found |= judged
        print({name: dict(each) for name, each in judged.items()}, file=sys.stderr, flush=True)
        for protect in SEALED:
            grid = honest_messages(images, folder / f"requests, {protect}", (protect,))
            found[f"requests to a site, {protect}"] = fuzz_requests(grid, part // 2, seed)
        for protect in SEALED:
            place = folder / f"answers, {protect}"
            found[f"answers, {protect}"] = fuzz_sealed(images, place, protect, part // 5, seed)
            print(protect, dict(found[f"answers, {protect}"]), file=sys.stderr, flush=True)
    values: dict[str, Any] = {
        "messages": sum(each["messages"] for each in found.values()),
        "of these under secure-sum, alone and combined": sum(
            each["messages"] for name, each in found.items() if "secure-sum" in name
        ),
        "uncaught": sum(
            n for each in found.values() for how, n in each.items() if how.startswith("uncaught")
        ),
        "seconds": round(time.perf_counter() - started, 1),
    }
    report("Fuzzed messages", values, {name: dict(each) for name, each in found.items()}, chosen.out)


if __name__ == "__main__":
    main()
