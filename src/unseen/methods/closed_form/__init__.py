"""Heads in closed form: ridge regression and nearest class means, from sums over the clients' samples."""

from unseen.methods.closed_form.class_means import ClassMeans
from unseen.methods.closed_form.ridge import Ridge
from unseen.methods.closed_form.starting_head import RANDOM, START_ROUND, StartingHead, make_starting_head
from unseen.methods.closed_form.zero_shot import ZeroShot, class_text_head, start_zero_shot

__all__ = [
    "RANDOM",
    "START_ROUND",
    "ClassMeans",
    "Ridge",
    "StartingHead",
    "ZeroShot",
    "class_text_head",
    "make_starting_head",
    "start_zero_shot",
]
