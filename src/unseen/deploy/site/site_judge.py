"""A site's side of a job that only evaluates: check its policy, run the models, answer with metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unseen.data.site_data import SiteSamples
from unseen.data.sources import DataRequest, resolve_data_root
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.judge_job import SPLIT, JudgeJob
from unseen.deploy.site.approvals import Approvals
from unseen.deploy.site.site_policy import PolicyRefusalError, SitePolicy
from unseen.errors import UnseenError
from unseen.judging.judge_sites import open_models
from unseen.judging.site_findings import LEFT, JudgeTerms, judge_site
from unseen.printable import quote

if TYPE_CHECKING:
    from unseen.deploy.site.site import Site


def answer_judging(site: Site, policy: SitePolicy, request: SiteMessage) -> SiteMessage:
    """Answer the question who takes part, or judge; everything is checked against the policy first."""
    job, what = JudgeJob.from_dict(request.header["job"]), request.header["ask"]
    check_judging(policy, job)
    if what == "census":
        samples = _load(site, policy, job)
        return SiteMessage({"site": site.name, "counts": samples.counts(), "confirms": policy.confirm})
    if what != "judge":
        raise UnseenError(f"received a request {quote(what)} that no job of this kind has")
    if policy.confirm:
        Approvals(site.home).require(job, tell=site.warn)
        policy = site.policy()
        check_judging(policy, job)
    torch.set_num_threads(job.options.threads or torch.get_num_threads())
    models = open_models(job.models, [_read_bytes(request, place) for place in range(len(job.models))])
    findings = judge_site(
        _load(site, policy, job),
        models,
        JudgeTerms.of(models, job.options.group_columns),
        min_group=policy.min_group,
        batch_size=job.options.batch_size,
    )
    return SiteMessage({"site": site.name, **findings.to_header()}, findings.to_arrays())


def check_judging(policy: SitePolicy, job: JudgeJob) -> None:
    """Refuse a job that the policy does not allow."""
    rules = policy.judge
    policy.check_evaluation({SPLIT: 0})
    policy.check_kinds([LEFT])
    refused: dict[str, Any] = {}
    if not rules.allow:
        refused["jobs that only evaluate"] = "allow = false"
    elif not rules.onnx and any(model.kind == "onnx" for model in job.models):
        refused["running an ONNX file"] = "onnx = false"
    columns = [("groups of the column", each, "group_columns") for each in job.options.group_columns]
    if job.image_size is None:
        columns.append(("judging on the column", job.options.target_column, "target_columns"))
    for what, column, key in columns:
        if column not in getattr(rules, key):
            refused[f"{what} {quote(column)}"] = f"{key} = {', '.join(getattr(rules, key)) or 'none'}"
    for what, key in refused.items():
        raise PolicyRefusalError(f"refused by the site's policy: {what} (policy.toml: [judge] {key})")


def _load(site: Site, policy: SitePolicy, job: JudgeJob) -> SiteSamples:
    options = job.options
    request = DataRequest(
        site.data,
        root=resolve_data_root(None),
        image_size=job.image_size,
        domain_column=options.domain_column,
        target_column=options.target_column,
        task=job.task if job.image_size is None else None,
    )
    samples = site.load(request, min_group=policy.min_group)
    policy.check_evaluation({SPLIT: len(samples.targets)})
    return samples


def _read_bytes(request: SiteMessage, place: int) -> bytes:
    """Return the bytes of a model; `open_models` compares them with the job's checksums."""
    array = request.arrays.get(f"model {place}")
    if array is None or array.dtype != np.uint8 or array.ndim != 1:
        raise UnseenError("received a job without its models; run the same version of Unseen everywhere")
    return array.tobytes()
