"""Jobs that wait for a person at the site: asked by the site's processes, answered by `unseen approve`.

An approval is for one job, all of it: under the same run id another method, protection or number of rounds is
another job, and waits again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unseen.deploy.safe_names import require_safe_name
from unseen.deploy.site.site_policy import PolicyRefusalError
from unseen.errors import UnseenError, UsageError
from unseen.fileio import write_json
from unseen.printable import quote

if TYPE_CHECKING:
    from unseen.deploy.job import Job
    from unseen.deploy.judge_job import JudgeJob

WAIT_SECONDS, POLL_SECONDS = 3600.0, 1.0
"""How long a message waits for a person; later messages of the same job ask again."""
State = Literal["waiting", "approved", "denied"]


@dataclass(frozen=True)
class Approval:
    """A job that was asked for: its digest, what it would do, and what a person said to it."""

    run: str
    digest: str
    summary: str
    asked: str
    state: State = "waiting"


class Approvals:
    """The jobs that a site's home was asked to run; one file per run."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "approvals"

    def get(self, run: str) -> Approval | None:
        """Return what is known of a run, or None."""
        path = self.folder / f"{require_safe_name(run, 'a run')}.json"
        try:
            return Approval(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise UnseenError(
                f"{path} cannot be read ({error}); remove it, the job is asked for again"
            ) from error

    def all(self) -> list[Approval]:
        """List every job that was asked for, in the order of their names."""
        found = (self.get(path.stem) for path in sorted(self.folder.glob("[!.]*.json")))
        return [approval for approval in found if approval is not None]

    def decide(self, run: str, state: State) -> Approval:
        """Record what a person said to a job."""
        known = self.get(run)
        if known is None:
            waiting = ", ".join(one.run for one in self.all() if one.state == "waiting") or "none"
            raise UsageError(f"no job {run!r} was asked for here; waiting: {waiting}")
        return self._keep(replace(known, state=state))

    def require(self, job: Job | JudgeJob, *, tell: Callable[[str], None]) -> None:
        """Wait until a person has approved this very job; raise if they deny it or do not come."""
        digest = job.digest.hex()
        known = self.get(job.run_id)
        if known is None or known.digest != digest:
            known = self._keep(Approval(job.run_id, digest, _summarize(job), _now()))
        until = time.monotonic() + WAIT_SECONDS
        if known.state == "waiting":
            tell(f"job {job.run_id} waits for a person: {known.summary}; unseen approve {job.run_id}")
        while known is not None and known.digest == digest and known.state == "waiting":
            if time.monotonic() > until:
                raise PolicyRefusalError(
                    f"job {job.run_id} was not approved by a person at the site within {WAIT_SECONDS:g} s; "
                    "ask them to run `unseen approve`, then continue with --resume"
                )
            time.sleep(POLL_SECONDS)
            known = self.get(job.run_id)
        if known is None or known.digest != digest or known.state != "approved":
            raise PolicyRefusalError(f"job {job.run_id} was denied by a person at the site")

    def _keep(self, approval: Approval) -> Approval:
        write_json(self.folder / f"{require_safe_name(approval.run, 'a run')}.json", asdict(approval))
        return approval


def _summarize(job: Job | JudgeJob) -> str:
    from unseen.deploy.judge_job import JudgeJob

    return job.summary if isinstance(job, JudgeJob) else describe_job(job)


def describe_job(job: Job) -> str:
    """Say in one line what a person is asked to approve."""
    config = job.config
    sums = f"sums of {len(job.columns)} table columns, before " if job.columns else ""
    return (
        f"{sums}{config.method} with protection {config.protect}, {config.rounds} rounds, model "
        f"{quote(config.model)}, sources {quote(job.sources)}, held out {quote(config.hold_out)}"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
