"""`unseen reproduce`: reproduce a table or figure of a paper, with the published rows next to ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from unseen.cli.bench_command import BenchRunOptions, changed, run_grid, words
from unseen.cli.console import messages, print_json, results
from unseen.cli.options import option_group, with_options, with_plugins
from unseen.errors import UnseenError, UsageError, unknown_name

if TYPE_CHECKING:
    from unseen.bench.grid import Grid
    from unseen.bench.papers.readiness import Readiness
    from unseen.bench.papers.recipe import Recipe

RESOLVED = "recipe.toml"
"""The recipe's grid with the weights and domains that are available; `unseen bench` accepts it too."""
_WHAT = "Recipe"


@with_plugins
@with_options(jobs=option_group(BenchRunOptions))
def reproduce_command(
    name: Annotated[str | None, typer.Argument(metavar="RECIPE", help="See --list.")] = None,
    *,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List all recipes and what each is missing.", rich_help_panel=_WHAT),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show what would run; run nothing.", rich_help_panel=_WHAT)
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
        typer.Option(help="Only these labels of the recipe, separated by commas.", rich_help_panel=_WHAT),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="Only these held-out domains, separated by commas.", rich_help_panel=_WHAT),
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
            "--from-scratch",
            help="Start from random weights, not from pretrained ones.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    jobs: BenchRunOptions,
) -> None:
    """Reproduce a table or figure of a paper, with the published rows next to ours.

    A recipe is a bench in the setting of its paper. Stop at any time; the same command resumes.

    Examples:

        unseen reproduce --list

        unseen reproduce csac-table3 --show

        unseen reproduce csac-table3 --budget small --out csac-table3
    """
    root = Path(jobs.data_root).expanduser() if jobs.data_root else None
    if listed:
        print_recipes(root, as_json=jobs.as_json)
        return
    if name is None:
        raise UsageError("name a recipe: unseen reproduce csac-table3 (see `unseen reproduce --list`)")
    from unseen.bench.grid import Grid
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
        print_recipe(
            recipe, _narrow(recipe.grid(budget), given), budget=budget, root=root, as_json=jobs.as_json
        )
        return
    grid = _ready(recipe, _narrow(recipe.grid(budget), given), root, from_scratch=from_scratch)
    place = jobs.out or Path("runs") / f"{recipe.name}-{budget}"
    if place.is_file():
        raise UsageError(f"{place} is a file; --out takes a folder")
    place.mkdir(parents=True, exist_ok=True)
    grid.save(place / RESOLVED)
    run_grid(lambda: Grid.from_toml(place / RESOLVED), place, jobs)
    if recipe.figure and not jobs.as_json:
        results().print(_where_the_figure_is(recipe), soft_wrap=True)


def _narrow(grid: Grid, given: dict[str, Any]) -> Grid:
    """Narrow a recipe down; labels and domains that it does not have are refused."""
    for kind, known in (("methods", tuple(grid.methods)), ("hold_out", grid.hold_out)):
        for word in words(given.get(kind, [])):
            if word not in known:
                raise unknown_name(f"{kind.replace('_', '-')} of this recipe", word, known)
    return changed(grid, given)


def _ready(recipe: Recipe, grid: Grid, root: Path | None, *, from_scratch: bool) -> Grid:
    """Fill in the weights and domains that are available, or raise an error that names what is missing."""
    from unseen.bench.papers.readiness import check_readiness, with_weights, without_domains

    found = check_readiness(grid, root)
    if found.data:
        raise UnseenError(f"{recipe.name} needs data that is missing: {found.data}")
    if found.domains:
        messages().print(f"Left out because files are missing: {', '.join(found.domains)}", soft_wrap=True)
    return with_weights(without_domains(grid, found.domains), root, from_scratch=from_scratch)


def _where_the_figure_is(recipe: Recipe) -> str:
    page, _, figure = recipe.figure.partition(":")
    if page == "bench":
        return f"{recipe.shows}: the figure {figure!r} of the page."
    option = " --features" if figure == "features" else ""
    return f"{recipe.shows}: the figure {figure!r} in each job's report: unseen report{option} OUT/jobs/JOB"


def print_recipes(root: Path | None, *, as_json: bool) -> None:
    """List all recipes with what each is missing; print once how to get it."""
    from unseen.bench.papers.readiness import check_readiness
    from unseen.bench.papers.recipe import list_recipes, load_recipe
    from unseen.models.weight_sources import weights_place

    recipes = [load_recipe(name) for name in list_recipes()]
    found = {recipe.name: check_readiness(recipe.grid("small"), root) for recipe in recipes}
    if as_json:
        print_json([_facts(recipe, found[recipe.name]) for recipe in recipes])
        return
    table = Table("recipe", "paper", "what it shows", "data", "state")
    for recipe in recipes:
        paper = f"{recipe.paper.name}, {recipe.shows}"
        table.add_row(recipe.name, paper, recipe.about, recipe.data, _state(found[recipe.name]))
    console = results()
    console.print(table)
    data = {recipe.data: found[recipe.name].data for recipe in recipes if found[recipe.name].data}
    weights = dict.fromkeys(model for each in found.values() for model in each.weights)
    if data or weights:
        console.print("To get what is missing (`unseen data get DATA` downloads where allowed):")
    for name, put in data.items():
        console.print(f"  {name}: {put}", soft_wrap=True, markup=False)
    for model in weights:
        place = f"put ImageNet weights as {weights_place(model)} below the data root, or use --from-scratch"
        console.print(f"  {model}: {place}", soft_wrap=True, markup=False)


def print_recipe(recipe: Recipe, grid: Grid, *, budget: str, root: Path | None, as_json: bool) -> None:
    """Print what a recipe would run: its jobs, their training samples and options."""
    from unseen.bench.papers.readiness import check_readiness

    missing = check_readiness(grid, root)
    work = _work(grid)
    if as_json:
        facts = {
            **_facts(recipe, missing),
            "budget": budget,
            "hold_out": list(grid.hold_out),
            "seeds": list(grid.seeds),
            "common": dict(grid.common),
            "methods": {label: dict(options) for label, options in grid.methods.items()},
            "jobs": sum(jobs for jobs, _ in work.values()),
            "samples": sum(jobs * samples for jobs, samples in work.values()),
        }
        print_json(facts)
        return
    console = results()
    console.print(f"[bold]{grid.title}[/bold]\n{grid.note.strip()}", soft_wrap=True)
    table = Table("label", "jobs", "samples per job", "options of the label")
    for label, (jobs, samples) in work.items():
        own = {key: value for key, value in grid.methods[label].items() if key != "settings"}
        own |= grid.methods[label].get("settings", {})
        said = ", ".join(f"{key} {value}" for key, value in own.items() if value != label)
        table.add_row(label, str(jobs), f"{samples:,}", said)
    console.print(table)
    total = sum(jobs * samples for jobs, samples in work.values())
    lines = {
        "held out": ", ".join(grid.hold_out),
        "seeds": ", ".join(map(str, grid.seeds)),
        "all jobs": ", ".join(f"{key} {value}" for key, value in grid.common.items()),
        "total": f"{sum(jobs for jobs, _ in work.values())} jobs, about {total:,} training samples",
        "compared with": f"published {recipe.paper.name}, {recipe.shows}" if grid.published else "",
        "state": _state(missing) + (f": {missing.data}" if missing.data else ""),
    }
    for key, value in lines.items():
        if value:
            console.print(f"{key}: {value}", soft_wrap=True, markup=False)


def _work(grid: Grid) -> dict[str, tuple[int, int]]:
    """Map each label to its number of jobs and the mean number of samples that one trains on."""
    from unseen.bench.papers.readiness import planned_samples

    jobs = sum(len(grid.seeds_for(domain)) for domain in grid.hold_out)
    return {
        label: (
            jobs,
            sum(planned_samples(grid, label, domain) for domain in grid.hold_out) // len(grid.hold_out),
        )
        for label in grid.methods
    }


def _state(found: Readiness) -> str:
    if found.data:
        return "data missing"
    if found.weights:
        return f"weights missing: {', '.join(found.weights)}"
    return f"ready, without {', '.join(found.domains)}" if found.domains else "ready"


def _facts(recipe: Recipe, found: Readiness) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "paper": recipe.paper.name,
        "shows": recipe.shows,
        "about": recipe.about,
        "figure": recipe.figure or None,
        "data": recipe.data,
        "runnable": found.runnable,
        "missing_data": found.data or None,
        "missing_domains": list(found.domains),
        "missing_weights": list(found.weights),
    }
