"""`unseen judge`: how good is a finished model, or which of two is better, on data that stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import AsJson, DataRoot, option_group, with_options, with_plugins
from unseen.cli.train_command import FlowerOptions, find_coordinator
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.judging import Judgement

FILES, ONNX = "Your data", "ONNX files"
SHOWN = ("accuracy", "macro_f1", "auroc", "ece", "mae", "rmse", "r2")
"""Metrics in the terminal; the page and the file have all."""


@dataclass(frozen=True)
class JudgedFiles:
    """How data and ONNX files are read."""

    domain: Annotated[
        list[str] | None, typer.Option(help="Judge these sites only (repeatable).", rich_help_panel=FILES)
    ] = None
    domain_column: Annotated[
        str, typer.Option(help="Column of a table that names the site.", rich_help_panel=FILES)
    ] = "domain"
    target: Annotated[str, typer.Option(help="Column of a table with the truth.", rich_help_panel=FILES)] = (
        "target"
    )
    group_column: Annotated[
        list[str] | None,
        typer.Option(help="Column of a table whose texts are groups (repeatable).", rich_help_panel=FILES),
    ] = None
    min_group: Annotated[
        int | None,
        typer.Option(
            help="Smallest class and group that is counted; 5 if not given. Across sites each has its own.",
            rich_help_panel=FILES,
        ),
    ] = None
    data_root: DataRoot = None
    class_name: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="A class of an ONNX file, in the order of its outputs (repeatable).",
            rich_help_panel=ONNX,
        ),
    ] = None
    pixels: Annotated[
        str,
        typer.Option(
            help="What an ONNX file takes: bytes (0 to 255), unit (0 to 1), imagenet.", rich_help_panel=ONNX
        ),
    ] = ""


@with_plugins
@with_options(files=option_group(JudgedFiles), flower=option_group(FlowerOptions))
def judge_command(
    model: Annotated[Path, typer.Argument(help="A run folder, its model.safetensors, or an ONNX file.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[MODEL2]", help="A second model, tested against the first.")
    ] = None,
    *,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder site/class/image, a table, or a named data set; several: one place per site, each "
            "as PATH or SITE=PATH (repeatable)."
        ),
    ] = None,
    files: JudgedFiles,
    flower: FlowerOptions,
    out: Annotated[Path, typer.Option(help="Folder for judgement.json and judgement.html.")] = Path(
        "judgement"
    ),
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 256,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads per site, on which the last bits depend; 0: chosen.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model, or compare two, without training: metrics with intervals per site and together.

    Two models are compared on the same samples: accuracies by McNemar's exact test, areas under the ROC curve
    by DeLong's, errors of values by a paired t-test. Writes a page for people who decide about the model.

    With --coordinator the sites of a federation judge the model on their own data, if their policies allow
    it, and send metrics only.

    Examples:

        unseen judge demo/fedavg --data rotated-digits

        unseen judge demo/fedavg demo/csac --data rotated-digits --domain 75

        unseen judge runs/price --data houses.csv --domain-column region --target price --group-column kind

        unseen judge model.onnx --data a=hospital_a/ --data b=hospital_b/ --class benign --class malignant

        unseen judge demo/fedavg --coordinator federation
    """
    from unseen.errors import escape_bytes
    from unseen.fileio import write_text
    from unseen.judging.judgement import PAGE
    from unseen.report.judge_page import judge_page

    if (data is None) == (flower.coordinator is None):
        raise UsageError("name either the data of this machine (--data) or a federation (--coordinator)")
    models = [model] if other is None else [model, other]
    options = {"batch_size": batch_size, "threads": threads}
    if data is not None:
        judgement = _judge_here(models, data, files, options)
        judgement.save(out)
    else:
        judgement = _judge_sites(models, files, flower, options, out)
    page = out / PAGE
    write_text(page, escape_bytes(judge_page(judgement.values)))
    if as_json:
        print_json({**judgement.values, "page": str(page)})
        return
    show_judgement(judgement)
    results().print(f"Page: {page}", soft_wrap=True, markup=False)


def _judge_here(
    models: Sequence[Path], data: list[str], files: JudgedFiles, options: dict[str, Any]
) -> Judgement:
    from unseen.cli.progress import DelayedProgressBar
    from unseen.judging.judge_sites import judge
    from unseen.judging.site_findings import MIN_GROUP

    with DelayedProgressBar(messages()) as bar:
        return judge(
            *models,
            data=data[0] if len(data) == 1 else data,
            domains=files.domain or (),
            group_columns=files.group_column or (),
            min_group=MIN_GROUP if files.min_group is None else files.min_group,
            domain_column=files.domain_column,
            target=files.target,
            classes=files.class_name or (),
            pixels=files.pixels,
            data_root=files.data_root,
            progress=bar,
            **options,
        )


def show_judgement(judgement: Judgement) -> None:
    """Print a table per model, what the tests say, and which sites are missing."""
    from unseen.report.judge_page import explain_test, metric_names, score_text

    values, printed = judgement.values, results()
    shown = metric_names(values, SHOWN)
    for place, model in enumerate(values["models"]):
        table = Table("site", "samples", *(label for _, label in shown), title=model["name"])
        for where, found in (*values["sites"].items(), ("all sites", values["pooled"])):
            scores = found["metrics"][place]
            cells = [score_text(name, scores.get(name)) for name, _ in shown]
            table.add_row(where, str(found["samples"]), *cells)
        printed.print(table)
    for test in judgement.tests:
        printed.print(f"- {explain_test(test, values)}", soft_wrap=True, markup=False)
    for site, reason in values["refused"].items():
        printed.print(f"- not judged: {site}: {reason}", soft_wrap=True, markup=False)


def _judge_sites(
    models: Sequence[Path], files: JudgedFiles, flower: FlowerOptions, options: dict[str, Any], out: Path
) -> Judgement:
    from unseen.cli.progress import LiveProgress
    from unseen.deploy.coordinator.coordinator import RoundPolicy
    from unseen.deploy.coordinator.judge_federation import JudgeRequest, judge_on_flower
    from unseen.judging.judge_sites import JudgeOptions

    if files.min_group is not None:
        raise UsageError("--min-group is for data of this machine; every site has its own in its policy")
    request = JudgeRequest(
        tuple(str(path.absolute()) for path in models),
        JudgeOptions(files.domain_column, files.target, tuple(files.group_column or ()), **options),
        classes=tuple(files.class_name or ()),
        pixels=files.pixels,
        sites=tuple(files.domain or ()),
    )
    with LiveProgress(messages(), label="judge") as progress:
        return judge_on_flower(
            request,
            coordinator=find_coordinator(str(flower.coordinator), flower.ca),
            out=out,
            terms=RoundPolicy(deadline=flower.round_deadline, min_sites=flower.min_sites),
            callbacks=progress,
        )
