"""Recipes: one file for every table and figure of the papers, to be run again with one command.

A recipe is a bench's grid in the setting of its paper, with what it shows, and smaller budgets.
"""

from unseen.bench.papers.recipes.budget import BUDGETS
from unseen.bench.papers.recipes.ready import Readiness, readiness, with_weights, without_domains
from unseen.bench.papers.recipes.recipe import Recipe, list_recipes, load_recipe
from unseen.bench.papers.recipes.sizes import samples_of

__all__ = [
    "BUDGETS",
    "Readiness",
    "Recipe",
    "list_recipes",
    "load_recipe",
    "readiness",
    "samples_of",
    "with_weights",
    "without_domains",
]
