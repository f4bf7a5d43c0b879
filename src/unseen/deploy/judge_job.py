"""A job that only evaluates: which models, on which data of a site, and how they are run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unseen.deploy.safe_names import require_safe_name
from unseen.errors import UnseenError
from unseen.judging.judge_sites import JudgeOptions
from unseen.judging.judged_model import JudgedModel, ModelSpec
from unseen.printable import printable, quote

KIND = "judge"
SPLIT = "target"
"""The split that is judged: all samples of a site, as of a held-out one."""
_SAME = "run the same version of Unseen everywhere"


@dataclass(frozen=True)
class JudgeJob:
    """What a site needs besides the models' bytes.

    task        of tables; the models decide
    image_size  side of images; None for tables
    """

    models: tuple[ModelSpec, ...]
    options: JudgeOptions
    task: str
    image_size: int | None

    @classmethod
    def of(cls, models: Sequence[JudgedModel], options: JudgeOptions) -> JudgeJob:
        """Create the job from the opened models."""
        first = models[0]
        return cls(tuple(model.spec for model in models), options, first.task, first.image_side)

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything in the job."""
        values = [each.to_dict() for each in self.models], asdict(self.options), self.task, self.image_size
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()

    @property
    def run_id(self) -> str:
        """Name of the job in logs and ledgers; the same job has the same name."""
        return f"judge-{self.digest.hex()[:12]}"

    @property
    def summary(self) -> str:
        """Say in one line what a person is asked to approve."""
        names = " and ".join(f"{quote(each.name)} ({each.kind}, {each.sha256[:12]})" for each in self.models)
        groups = f", groups of {quote(self.options.group_columns)}" if self.options.group_columns else ""
        target = f", column {quote(self.options.target_column)}" if self.image_size is None else ""
        return f"judging {names} on all samples{target}{groups}; metrics leave"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; `kind` tells it from a training job."""
        return {
            "kind": KIND,
            "run_id": self.run_id,
            "models": [each.to_dict() for each in self.models],
            "options": asdict(self.options),
            "task": self.task,
            "image_size": self.image_size,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JudgeJob:
        """Read JSON values; whatever is not a job is an UnseenError."""
        models, size = values.get("models"), values.get("image_size")
        if not isinstance(models, list) or len(models) not in (1, 2):
            raise UnseenError(f"a job must name one or two models; {_SAME}")
        if size is not None and (type(size) is not int or not 4 <= size <= 1 << 14):
            raise UnseenError(f"the job's image size {printable(size, longest=40)} cannot be; {_SAME}")
        job = cls(
            tuple(map(ModelSpec.from_dict, models)), _read_options(values.get("options")),
            str(values.get("task")), size,
        )  # fmt: skip
        if require_safe_name(str(values.get("run_id")), "a run") != job.run_id:
            raise UnseenError(f"the job's name does not follow from its content; {_SAME}")
        return job


def _read_options(values: object) -> JudgeOptions:
    """Read the options, each of the type of its default."""
    defaults = asdict(JudgeOptions())
    if not isinstance(values, dict) or values.keys() != defaults.keys():
        raise UnseenError(f"the job's options cannot be read; {_SAME}")
    found: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    columns = found["group_columns"]
    if any(type(found[key]) is not type(value) for key, value in defaults.items()) or not all(
        isinstance(name, str) for name in columns
    ):
        raise UnseenError(f"the job's options cannot be read; {_SAME}")
    return JudgeOptions(**found)


def is_judging(header: Mapping[str, Any]) -> bool:
    """Whether a message belongs to a job that only evaluates."""
    job = header.get("job")
    return isinstance(job, dict) and job.get("kind") == KIND
