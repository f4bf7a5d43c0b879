"""Judge models at the sites of a federation: submit the job, ask every site, combine what they answer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unseen.callbacks.base import CallbackList, Callbacks
from unseen.deploy.coordinator.coordinator import SETTLED_SECONDS, RoundPolicy
from unseen.deploy.coordinator.judge_checks import Counts, read_counts, read_findings
from unseen.deploy.coordinator.submit import submit_and_follow
from unseen.deploy.flower.app_folder import write_app_folder
from unseen.deploy.flower.compat import require_flower
from unseen.deploy.flower.flwr_cli import SuperLinkConnection
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.flower.sites import Sites
from unseen.deploy.judge_job import JudgeJob
from unseen.deploy.safe_names import SAFE_NAME
from unseen.engine.base import NoAnswer
from unseen.errors import UnseenError
from unseen.judging.judge_sites import JudgeOptions, describe_judged, open_models
from unseen.judging.judged_model import describe_model
from unseen.judging.judgement import Judgement, combine_findings, load_judgement
from unseen.judging.site_findings import JudgeTerms, SiteFindings

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@dataclass(frozen=True)
class JudgeRequest:
    """What the coordinator is asked for: files on its machine, options, and sites ((): all connected)."""

    models: tuple[str, ...]
    options: JudgeOptions
    classes: tuple[str, ...] = ()
    pixels: str = ""
    sites: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the request into the app's configuration."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JudgeRequest:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        options = values.pop("options")
        options["group_columns"] = tuple(options["group_columns"])
        lists = {key: tuple(values.pop(key)) for key in ("models", "classes", "sites")}
        return cls(options=JudgeOptions(**options), pixels=str(values["pixels"]), **lists)

    def describe(self) -> list[Any]:
        """Return the specification and the bytes of every model."""
        return [describe_model(path, classes=self.classes, pixels=self.pixels) for path in self.models]


def judge_on_flower(
    request: JudgeRequest,
    *,
    coordinator: SuperLinkConnection,
    out: Path,
    terms: RoundPolicy | None = None,
    callbacks: Callbacks = None,
) -> Judgement:
    """Judge models at the sites of a coordinator on this machine; return what was written to `out`."""
    require_flower()
    described, policy = request.describe(), terms or RoundPolicy()
    open_models([spec for spec, _ in described], [content for _, content in described])

    def write(folder: Path, notebook: Path) -> None:
        write_app_folder(
            folder,
            {
                "judge": request.to_json(),
                "out": str(out.absolute()),
                "round-deadline": policy.deadline,
                "min-sites": policy.min_sites,
                "notebook": str(notebook),
                "names": json.dumps(dict(coordinator.names)),
            },
        )

    submit_and_follow(write, coordinator, CallbackList(callbacks))
    return load_judgement(out)


def coordinate_judging(
    grid: Grid,
    request: JudgeRequest,
    *,
    out: Path,
    terms: RoundPolicy,
    callbacks: Callbacks = None,
    names: Mapping[str, str] | None = None,
) -> Judgement:
    """Ask the connected sites, and write the judgement."""
    described = request.describe()
    contents = [content for _, content in described]
    models = open_models([spec for spec, _ in described], contents)
    options = request.options
    if not options.threads:
        options = JudgeOptions(**{**asdict(options), "threads": torch.get_num_threads()})
    job, asked = JudgeJob.of(models, options), JudgeTerms.of(models, options.group_columns)
    following = CallbackList(callbacks)
    party = JudgeParty(grid, job, asked, terms, names=names or {})
    counts = party.gather(request.sites, following)
    question = {f"model {place}": np.frombuffer(each, np.uint8) for place, each in enumerate(contents)}
    messages = {site: SiteMessage({"job": job.to_dict()}, dict(question)) for site in sorted(counts)}
    following.on_prepare("judging at sites", 0, len(messages))
    found, refused = _read(party.sites.ask("judge", messages), asked, counts)
    refused |= party.refused()
    for site, reason in refused.items():
        following.on_note(f"not judged: {site}: {reason}")
    if len(found) < terms.min_sites:
        reasons = "; ".join(f"{site}: {reason}" for site, reason in refused.items())
        raise UnseenError(
            f"{len(found)} sites judged the model, at least {terms.min_sites} are needed (--min-sites): "
            f"{reasons}"
        )
    about = {"data": "the sites' own", "where": "Flower", "split": "all samples"}
    judgement = combine_findings(
        found, asked, [describe_judged(each) for each in models], refused=refused, about=about
    )
    judgement.save(out)
    return judgement


def _read(
    answers: Mapping[str, SiteMessage | NoAnswer], asked: JudgeTerms, counts: Mapping[str, Counts]
) -> tuple[list[SiteFindings], dict[str, str]]:
    """Read the sites' answers; one that cannot be used is a reason, and the others go on."""
    found, refused = list[SiteFindings](), dict[str, str]()
    for site, answer in answers.items():
        if isinstance(answer, NoAnswer):
            refused[site] = answer.reason
            continue
        try:
            found.append(read_findings(site, answer, asked, counts[site]))
        except UnseenError as error:
            refused[site] = str(error)
    return found, refused


class JudgeParty:
    """The sites that take part: those whose policy allows the job and that have samples for it."""

    def __init__(
        self, grid: Grid, job: JudgeJob, asked: JudgeTerms, terms: RoundPolicy, *, names: Mapping[str, str]
    ) -> None:
        self.asked, self.terms, self.counts = asked, terms, dict[str, Counts]()
        self.sites = Sites(
            grid,
            census=SiteMessage({"job": job.to_dict()}),
            deadline=terms.deadline,
            welcome=self.welcome,
            names=names,
        )

    def welcome(self, site: str, said: dict[str, Any]) -> str | None:
        """Accept a site (None), or say why not."""
        if not SAFE_NAME.fullmatch(site):
            return "has no usable name; expected letters, digits, and . _ - after the first"
        try:
            self.counts[site] = read_counts(said.get("counts"), self.asked)
        except UnseenError as error:
            return str(error)
        return None

    def refused(self) -> dict[str, str]:
        """Return the sites that do not take part, with their reasons."""
        pairs = (reason.partition(": ") for reason in self.sites.turned_away.values())
        return {site: reason or site for site, _, reason in pairs}

    def gather(self, wanted: Sequence[str], following: CallbackList) -> dict[str, Counts]:
        """Wait for the named sites, or until no other one has come for a while."""
        until, quiet_since, before = time.monotonic() + self.terms.deadline, time.monotonic(), -1
        while True:
            self.sites.greet()
            here = len(self.counts) + len(self.sites.turned_away)
            if here != before:
                quiet_since, before = time.monotonic(), here
            missing = set(wanted) - set(self.counts) - set(self.refused())
            following.on_prepare("sites", len(self.counts), max(len(wanted), self.terms.min_sites))
            settled = bool(wanted) or time.monotonic() - quiet_since > SETTLED_SECONDS
            late = time.monotonic() > until
            if here and not missing and settled and (wanted or here >= self.terms.min_sites):
                break
            if late:
                lacking = ", ".join(sorted(missing)) or "a site"
                raise UnseenError(
                    f"waited {self.terms.deadline:g} s for sites; missing: {lacking}{self.sites.complaints()}"
                )
            time.sleep(0.5)
        chosen = {site: counts for site, counts in self.counts.items() if not wanted or site in wanted}
        if not chosen:
            raise UnseenError(f"no site takes part{self.sites.complaints()}")
        return chosen
