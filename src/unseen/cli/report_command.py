"""`unseen report`: rewrite the page of a run or a bench, or compare runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import print_json, results
from unseen.cli.options import with_plugins
from unseen.errors import UsageError

GRID = "bench.toml"


@with_plugins
def report_command(
    runs: Annotated[
        list[Path], typer.Argument(help="One run folder or bench folder, or several runs to compare.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page that compares several runs.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG files into this folder.")
    ] = None,
    features: Annotated[
        bool,
        typer.Option(
            "--features",
            help="First embed sample features by t-SNE, before and after training; needs the data.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write the report page of a run or a bench from its records, or one page that compares several runs.

    Examples:

        unseen report runs/rotated-digits-75-fedavg-0 --figures figures

        unseen report my_bench --figures figures

        unseen report demo/fedavg demo/deepall --out comparison.html
    """
    if any((folder / GRID).is_file() for folder in runs):
        written, images = _bench(runs, figures, features=features)
    else:
        written, images = _runs(runs, out, figures, features=features)
    if as_json:
        print_json({"pages": [str(page) for page in written], "figures": [str(path) for path in images]})
        return
    for path in (*written, *images):
        results().print(str(path), soft_wrap=True)


def _bench(folders: list[Path], figures: Path | None, *, features: bool) -> tuple[list[Path], list[Path]]:
    """Write the page and tables of one bench folder."""
    if len(folders) > 1 or features:
        raise UsageError(
            f"{folders[0]}: a bench folder is reported alone; --features takes a single run's folder"
        )
    from unseen.bench.bench_files import rewrite_bench

    made, images = rewrite_bench(folders[0], figures=figures)
    return [made.page, made.markdown, made.latex, made.csv], images


def _runs(
    runs: list[Path], out: Path | None, figures: Path | None, *, features: bool
) -> tuple[list[Path], list[Path]]:
    """Write the page of one run, or one that compares several."""
    from unseen.report import write_comparison, write_figures, write_report

    if features:
        from unseen.runner.features import write_features

        for run in runs:
            write_features(run)
    if len(runs) == 1:
        pages = [write_report(runs[0])]
    elif out is None:
        raise UsageError("several runs are compared on one page: name it with --out comparison.html")
    else:
        pages = [write_comparison(runs, out)]
    images = [path for run in runs for path in write_figures(run, figures / run.name)] if figures else []
    return pages, images
