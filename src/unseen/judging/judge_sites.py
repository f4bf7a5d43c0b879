"""Judge models on data of this machine: evaluation without training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unseen.data.dataset import DataSet
from unseen.data.site_data import SiteSamples, select_site
from unseen.data.sources import (
    SOURCES,
    DataRequest,
    Progress,
    load_data,
    load_site,
    no_progress,
    resolve_data_root,
)
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.judging.judged_model import JudgedModel, ModelSpec, describe_model, open_model, require_comparable
from unseen.judging.judgement import Judgement, combine_findings
from unseen.judging.site_findings import MIN_GROUP, JudgeTerms, SiteFindings, judge_site
from unseen.printable import printable

BATCH_SIZE = 256


@dataclass(frozen=True)
class JudgeOptions:
    """How data is read and models are run; all of it travels with a job.

    domain_column, target_column  of tables
    group_columns  columns of tables whose texts are groups of samples
    batch_size     samples per forward pass
    threads        per site; the order of sums depends on it; 0: as this process has it
    """

    domain_column: str = "domain"
    target_column: str = "target"
    group_columns: tuple[str, ...] = ()
    batch_size: int = BATCH_SIZE
    threads: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.threads < 0:
            raise UsageError("--batch-size must be at least 1, and --threads at least 0")
        if len(set(self.group_columns)) < len(self.group_columns):
            raise UsageError(f"--group-column names a column twice: {', '.join(self.group_columns)}")


def judge(
    model: str | Path,
    other: str | Path | None = None,
    *,
    data: str | Path | DataSet | Sequence[str | Path],
    domains: Sequence[str] = (),
    group_columns: Sequence[str] = (),
    min_group: int = MIN_GROUP,
    domain_column: str = "domain",
    target: str = "target",
    classes: Sequence[str] = (),
    pixels: str = "",
    data_root: str | Path | None = None,
    batch_size: int = BATCH_SIZE,
    threads: int = 0,
    progress: Progress = no_progress,
) -> Judgement:
    """Evaluate one or two models on every site of some data, without training.

    model, other   run folders, their model.safetensors, or ONNX files
    data           a folder site/class/image, a table, a named data set, or several places, one per site, each
                   as PATH or SITE=PATH
    domains        judge these sites only
    group_columns  columns of a table whose texts are groups
    min_group      smaller classes and groups are not counted
    classes, pixels  of an ONNX file that does not say
    """
    options = JudgeOptions(domain_column, target, tuple(group_columns), batch_size, threads)
    if min_group < 1:
        raise UsageError(f"--min-group must be at least 1, not {min_group}")
    paths = [model] if other is None else [model, other]
    described = [describe_model(path, classes=tuple(classes), pixels=pixels) for path in paths]
    with with_threads(threads):
        models = open_models([spec for spec, _ in described], [content for _, content in described])
        terms = JudgeTerms.of(models, options.group_columns)
        request = make_request(options, models[0], progress=progress)
        request = replace(request, root=resolve_data_root(data_root))
        found, refused = list[SiteFindings](), dict[str, str]()
        sites = load_sites(data, request, domains=tuple(domains))
        for site in sites:
            try:
                found.append(
                    judge_site(
                        site.without_small_classes(min_group),
                        models,
                        terms,
                        min_group=min_group,
                        batch_size=batch_size,
                        progress=progress,
                    )
                )
            except UsageError:
                raise
            except UnseenError as error:
                refused[site.site] = printable(str(error))
    about = {"data": _name_data(data), "where": "this machine", "split": "all samples"}
    return combine_findings(
        found, terms, [describe_judged(each) for each in models], refused=refused, about=about
    )


class with_threads:  # noqa: N801 (read as a clause)
    """Context in which torch computes with so many threads; 0 leaves it as it is."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self.threads:
            torch.set_num_threads(self.threads)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


def open_models(specs: Sequence[ModelSpec], contents: Sequence[bytes]) -> tuple[JudgedModel, ...]:
    """Open one or two models from their bytes, and check that they predict the same."""
    with tempfile.TemporaryDirectory(prefix="unseen-judge-") as name:
        models = tuple(
            open_model(spec, content, Path(name) / f"{place}.safetensors")
            for place, (spec, content) in enumerate(zip(specs, contents, strict=True))
        )
    require_comparable(models)
    return models


def make_request(
    options: JudgeOptions, model: JudgedModel, *, progress: Progress = no_progress
) -> DataRequest:
    """Request data as a model needs it; the source is named later."""
    return DataRequest(
        "",
        image_size=model.image_side,
        domain_column=options.domain_column,
        target_column=options.target_column,
        task=model.task if model.image_side is None else None,
        progress=progress,
    )


def load_sites(
    data: str | Path | DataSet | Sequence[str | Path], request: DataRequest, *, domains: tuple[str, ...]
) -> list[SiteSamples]:
    """Load every site's samples: the domains of one data set, or one place per site."""
    if isinstance(data, DataSet):
        return _split_sites(data, data.name, domains)
    places = [str(data)] if isinstance(data, str | Path) else [str(each) for each in data]
    if not places:
        raise UsageError("name the data: --data FOLDER, TABLE or NAME")
    if len(places) == 1 and not _is_named(places[0]):
        return _split_sites(load_data(replace(request, source=places[0])), places[0], domains)
    named = dict(_name_place(place) for place in places)
    if len(named) < len(places):
        raise UsageError("--data names two places of one site; say which is which with --data SITE=PATH")
    for domain in domains:
        if domain not in named:
            raise unknown_name("site", domain, named)
    return [
        load_site(site, replace(request, source=place))
        for site, place in sorted(named.items())
        if not domains or site in domains
    ]


def _is_named(place: str) -> bool:
    return "=" in place and not Path(place).exists()


def _name_place(place: str) -> tuple[str, str]:
    site, _, path = place.partition("=") if _is_named(place) else (Path(place).stem, "", place)
    if path in SOURCES and not Path(path).exists():
        raise UsageError(f"--data {place}: a named data set has its own sites; give it alone, with --domain")
    return site, path


def _split_sites(data: DataSet, source: str, domains: tuple[str, ...]) -> list[SiteSamples]:
    for domain in domains:
        if domain not in data.domains:
            raise unknown_name(f"domain (of {source})", domain, data.domains)
    return [select_site(data, name, source=source) for name in sorted(domains or data.domains)]


def _name_data(data: str | Path | DataSet | Sequence[str | Path]) -> str:
    if isinstance(data, DataSet):
        return data.name
    places = [data] if isinstance(data, str | Path) else data
    return ", ".join(printable(Path(str(each)).name, longest=80) for each in places)


def describe_judged(model: JudgedModel) -> Mapping[str, Any]:
    """Say which model was judged."""
    spec = model.spec
    return {
        "name": spec.name,
        "kind": {"unseen": "Unseen", "onnx": "ONNX"}[spec.kind],
        "sha256": spec.sha256,
        "sources": list(model.sources),
    }
