"""`unseen reproduce`: a table or figure of a paper again, with the published rows beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli import bench_options as shared
from unseen.cli.console import messages, results
from unseen.cli.recipe_view import print_recipe, print_recipes
from unseen.errors import UnseenError, UsageError

if TYPE_CHECKING:
    from unseen.bench.grid import Grid
    from unseen.bench.papers.recipe import Recipe

EXAMPLES = """Examples:

    unseen reproduce --list

    unseen reproduce csac-table3 --show

    unseen reproduce csac-table3 --budget small --out csac-table3
"""

RESOLVED = "recipe.toml"
"""The grid that a recipe came to, with the weights and domains that are there; for `unseen bench` too."""
_WHAT = "What is run"


def reproduce_command(  # noqa: PLR0917 (one parameter an option)
    name: Annotated[str | None, typer.Argument(metavar="RECIPE", help="See --list.")] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="Show all recipes, and what each lacks here.", rich_help_panel=_WHAT),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Say what would be run; run nothing.", rich_help_panel=_WHAT)
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            help="smoke (does it run?), small (about an hour on two cores for digits) or paper.",
            rich_help_panel=_WHAT,
        ),
    ] = "small",
    seeds: Annotated[
        str | None, typer.Option(help="Other seeds: how many (3), or which (0,1,2).", rich_help_panel=_WHAT)
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Only these labels of the recipe, by commas.", rich_help_panel=_WHAT),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="Only these held-out domains, by commas.", rich_help_panel=_WHAT),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(help="lodo: leave-one-domain-out cross-validation as well.", rich_help_panel=_WHAT),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The label that the others are tested against.", rich_help_panel=_WHAT)
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch", help="Begin with random weights, not pretrained ones.", rich_help_panel=_WHAT
        ),
    ] = False,
    data_root: shared.DataRoot = None,
    device: shared.Device = None,
    workers: shared.Workers = None,
    threads: shared.Threads = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Bench folder; runs/RECIPE-BUDGET if not given.", rich_help_panel=shared.WHERE),
    ] = None,
    work: shared.Work = None,
    latex: shared.Latex = None,
    csv: shared.Csv = None,
    retry_failed: shared.RetryFailed = False,
    collect: shared.Collect = False,
    as_json: shared.AsJson = False,
) -> None:
    """Make a table or figure of a paper again, with the published rows beside ours.

    A recipe is a bench in the setting of its paper. Stop at any time; the same command goes on.
    """
    root = Path(data_root).expanduser() if data_root else None
    if listed:
        print_recipes(root, as_json=as_json)
        return
    if name is None:
        raise UsageError("name a recipe: unseen reproduce csac-table3 (see `unseen reproduce --list`)")
    from unseen.bench.papers.recipe import load_recipe

    recipe = load_recipe(name)
    changes: dict[str, Any] = {
        "seeds": seeds,
        "methods": methods,
        "hold_out": hold_out,
        "selection": selection,
        "baseline": baseline,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if show:
        print_recipe(recipe, _changed(recipe.grid(budget), given), budget=budget, root=root, as_json=as_json)
        return
    grid = _ready(recipe, _changed(recipe.grid(budget), given), root, from_scratch=from_scratch)
    place = out or Path("runs") / f"{recipe.name}-{budget}"
    if place.is_file():
        raise UsageError(f"{place} is a file; --out takes a folder")
    place.mkdir(parents=True, exist_ok=True)
    grid.save(place / RESOLVED)
    from unseen.cli.bench import bench_command

    bench_command(
        str(place / RESOLVED),
        out=place,
        work=work,
        workers=workers,
        threads=threads,
        device=device,
        data_root=data_root,
        latex=latex,
        csv=csv,
        retry_failed=retry_failed,
        collect=collect,
        as_json=as_json,
    )
    if recipe.figure and not as_json:
        results().print(_where_the_figure_is(recipe), soft_wrap=True)


reproduce_command.__doc__ = f"{reproduce_command.__doc__}\n\n{EXAMPLES}"


def _changed(grid: Grid, given: dict[str, Any]) -> Grid:
    """Narrow a recipe down; labels and domains that it does not have are refused."""
    from unseen.cli.bench_request import changed, words
    from unseen.errors import unknown_name

    for kind, known in (("methods", tuple(grid.methods)), ("hold_out", grid.hold_out)):
        for word in words(given.get(kind, [])):
            if word not in known:
                raise unknown_name(f"{kind.replace('_', '-')} of this recipe", word, known)
    return changed(grid, given)


def _ready(recipe: Recipe, grid: Grid, root: Path | None, *, from_scratch: bool) -> Grid:
    """Put weights and domains in that are there, or say what is missing."""
    from unseen.bench.papers.readiness import check_readiness, with_weights, without_domains

    found = check_readiness(grid, root)
    if found.data:
        raise UnseenError(f"{recipe.name} needs data that is not there: {found.data}")
    if found.domains:
        messages().print(f"Left out for want of files: {', '.join(found.domains)}", soft_wrap=True)
    return with_weights(without_domains(grid, found.domains), root, from_scratch=from_scratch)


def _where_the_figure_is(recipe: Recipe) -> str:
    page, _, figure = recipe.figure.partition(":")
    if page == "bench":
        return f"{recipe.shows}: the figure {figure!r} of the page."
    option = " --features" if figure == "features" else ""
    return f"{recipe.shows}: the figure {figure!r} in each job's report: unseen report{option} OUT/jobs/JOB"
