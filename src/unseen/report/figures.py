"""The figures of a run, in the order of the page; a new one is one entry here.

A figure draws itself from a run alone, as one panel or several, each with a label ("" when the title
says enough); it returns none when the run has nothing to show for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from unseen.report import costs, curves, diagnostics, embedding
from unseen.report import method_figures as attention
from unseen.report import method_figures as layers
from unseen.report import method_figures as transferability
from unseen.report import prediction_figures as classes
from unseen.report import prediction_figures as scatter
from unseen.report.charts import skip_schema_checks
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import Panels


Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Figure(Generic[Shown]):
    """A title, a caption that says how to read it, and how to draw it; `width` is its share of a row."""

    title: str
    caption: str
    draw: Callable[[Shown], Panels]
    width: Literal["full", "half", "third"] = "half"


FIGURES: dict[str, Figure[Run]] = {
    "scores": Figure(
        "Scores over the rounds",
        "Thick: held-out domains, which took no part in training. Thin: the sources' own validation data. "
        "The dashed line is the round whose model was kept. Click a name to single it out.",
        curves.score_curves,
        width="full",
    ),
    "confusion": Figure(
        "What was taken for what",
        "Held-out data only. In a matrix, each row is a true class; the stronger the colour, the more often "
        "it was given the name below. A perfect model fills only the diagonal.",
        classes.confusion,
    ),
    "class-accuracy": Figure(
        "Accuracy of each class",
        "Held-out data only, the hardest class first.",
        classes.class_accuracy,
    ),
    "scatter": Figure(
        "Prediction against truth",
        "Held-out data only. On the dashed line a prediction equals the truth.",
        scatter.truth_against_prediction,
    ),
    "samples": Figure(
        "Samples per domain and class",
        "All samples, before they are split into training, validation and test data.",
        classes.sample_counts,
        width="full",
    ),
    "loss": Figure(
        "Training loss", "Mean over the clients of each round.", curves.training_loss, width="third"
    ),
    "time": Figure("Time", "Seconds spent in each round.", costs.time_per_round, width="third"),
    "bytes": Figure(
        "Traffic", "What travelled in each round, over all clients.", costs.bytes_per_round, width="third"
    ),
    "transferability": Figure(
        "Transferability of classes between domains",
        "A circle is one class of one domain, its size the number of samples. Circles of a class that lie "
        "together share their features across domains.",
        transferability.transferability_graph,
    ),
    "features": Figure(
        "Features in the plane",
        "Each dot is a sample; t-SNE puts samples near one another whose features are alike, while distances "
        "across the picture mean little. Good features part classes and mix domains.",
        embedding.feature_maps,
        width="full",
    ),
    "layer-weights": Figure(
        "Weight of every client in a layer",
        "What share of the merged layer each client's own makes up, over the rounds.",
        layers.layer_weights,
        width="full",
    ),
    "attention": Figure(
        "Which layers are drawn to which",
        "How much each of a client's own layers, in the columns, counts for a layer of the merged model. "
        "Layers are counted from the input, every row sums to one. Mean of the clients.",
        attention.attention,
    ),
    "distances": Figure(
        "How far the clients' models lie apart",
        "Root mean square of the distance of two clients' weights in a layer, before they are merged. Where "
        "clients of different domains lie farther apart than those of one, the layer carries the domain.",
        layers.model_distances,
    ),
    "diagnostics": Figure(
        "Inside the method",
        "Numbers that the method recorded about itself.",
        diagnostics.diagnostics,
        width="full",
    ),
}


def draw_figures(run: Run) -> dict[str, Panels]:
    """All figures that have something to show, by their names in `FIGURES`."""
    with skip_schema_checks():
        drawn = {name: figure.draw(run) for name, figure in FIGURES.items()}
    return {name: panels for name, panels in drawn.items() if panels}
