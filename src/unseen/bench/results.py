"""What a bench found: one small line for every finished job, made from the job's records alone.

Tables, tests and figures are functions of these lines, so a bench can be shown again without its run folders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.files import write_text

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class JobResult:
    """A finished job.

    accuracy     selection rule -> metric on the held-out domain: "source-validation", "last", "oracle", and
                 "leave-one-domain-out" where that was run; NaN where the metric is not defined
    in_domain    metric on test samples of the source domains; None where none were kept
    curve        metric on the held-out domain after every evaluated round
    metric       what the numbers are: "accuracy" or "pearson_r"
    job          the job's id, which is also the name of its run folder
    worst_group  accuracy of the worst group of held-out samples, where the data has groups
    """

    label: str
    held_out: str
    seed: int
    model: str
    accuracy: dict[str, float]
    in_domain: float | None
    curve: list[float]
    seconds: float
    bytes_up: int
    bytes_down: int
    metric: str
    job: str
    worst_group: float | None = None


def write_results(path: Path, results: Iterable[JobResult]) -> None:
    """Write one line a job; undefined numbers are written as null."""
    lines = [
        json.dumps(_without_nan(asdict(result)), ensure_ascii=False, allow_nan=False) for result in results
    ]
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_results(path: Path) -> list[JobResult]:
    """Read what `write_results` wrote."""
    known = {item.name for item in fields(JobResult)}
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [_result({key: value for key, value in line.items() if key in known}) for line in lines]
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UnseenError(f"{path} holds no results of a bench: {error}") from error


def _result(values: dict[str, Any]) -> JobResult:
    rules = {rule: _or_nan(value) for rule, value in values["accuracy"].items()}
    curve = [_or_nan(value) for value in values["curve"]]
    return JobResult(**{**values, "accuracy": rules, "curve": curve})


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
