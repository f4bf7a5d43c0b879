"""Recipes for the eye: the list of all, and what one of them would run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from unseen.cli.console import print_json, results

if TYPE_CHECKING:
    from unseen.bench.grid import Grid
    from unseen.bench.papers.readiness import Readiness
    from unseen.bench.papers.recipe import Recipe


def print_recipes(root: Path | None, *, as_json: bool) -> None:
    """List all recipes with what each lacks; what to do about it stands once below."""
    from unseen.bench.papers.readiness import check_readiness
    from unseen.bench.papers.recipe import list_recipes, load_recipe
    from unseen.models.pretrained import weights_place

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
        console.print("To get what is missing (`unseen data get DATA` downloads where it may):")
    for name, put in data.items():
        console.print(f"  {name}: {put}", soft_wrap=True, markup=False)
    for model in weights:
        place = f"put ImageNet weights as {weights_place(model)} below the data root, or use --from-scratch"
        console.print(f"  {model}: {place}", soft_wrap=True, markup=False)


def print_recipe(recipe: Recipe, grid: Grid, *, budget: str, root: Path | None, as_json: bool) -> None:
    """Say what a recipe would run: jobs, how many samples they train on, with what."""
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
    table = Table("label", "jobs", "samples a job", "its own options")
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
        "in all": f"{sum(jobs for jobs, _ in work.values())} jobs, about {total:,} training samples",
        "beside": f"published {recipe.paper.name}, {recipe.shows}" if grid.published else "",
        "state": _state(missing) + (f": {missing.data}" if missing.data else ""),
    }
    for key, value in lines.items():
        if value:
            console.print(f"{key}: {value}", soft_wrap=True, markup=False)


def _work(grid: Grid) -> dict[str, tuple[int, int]]:
    """Label -> how many jobs, and how many samples one trains on, the mean over held-out domains."""
    from unseen.bench.papers.readiness import samples_of

    jobs = len(grid.hold_out) * len(grid.seeds)
    return {
        label: (jobs, sum(samples_of(grid, label, domain) for domain in grid.hold_out) // len(grid.hold_out))
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
