"""The figures of a run's page; a plugin adds one with `register_figure`.

A figure draws itself from a run alone, as one chart or several panels with a label each ("" if the title
is enough), or returns nothing if the run has no data for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from unseen.registry import Registry
from unseen.report import (
    calibration_report,
    curves,
    diagnostics,
    embedding,
    method_figures,
    prediction_figures,
)
from unseen.report import curves as costs
from unseen.report.charts import skip_schema_checks
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

    Drawing: TypeAlias = AnyChart | Panels | None

Source = TypeVar("Source")
Width: TypeAlias = Literal["full", "half", "third"]
LAST = 1000
"""The order of figures that state none: after the built-in ones."""


@dataclass(frozen=True)
class Figure(Generic[Source]):
    """A title, a caption that explains how to read the figure, and the function that draws it.

    width  fraction of a row of the page that it takes
    order  position on the page, smaller first; equal ones by name
    """

    title: str
    caption: str
    draw: Callable[[Source], Drawing]
    width: Width = "half"
    order: int = LAST

    @property
    def summary(self) -> str:
        """One line for lists of figures."""
        return self.title

    def panels(self, source: Source) -> Panels:
        """Draw the figure as panels by label; none when there is nothing to show."""
        drawn = self.draw(source)
        if drawn is None:
            return {}
        return drawn if isinstance(drawn, dict) else {"": drawn}


FIGURES: Registry[Figure[Run]] = Registry("figure", group="unseen.figures")
DrawRun = TypeVar("DrawRun", bound="Callable[[Run], Drawing]")


def register_figure(
    name: str, *, title: str, caption: str = "", width: Width = "half", order: int = LAST
) -> Callable[[DrawRun], DrawRun]:
    """Register the decorated function of a run as a figure of every run's page."""

    def enter(draw: DrawRun) -> DrawRun:
        FIGURES.register(name)(Figure(title, caption, draw, width, order))
        return draw

    return enter


def figure_names() -> list[str]:
    """Return the names of all figures in the order of the page."""
    return sorted(FIGURES, key=lambda name: (FIGURES[name].order, name))


def draw_figures(run: Run) -> dict[str, Panels]:
    """Draw all figures that have something to show, by their names in `FIGURES`, in the order of the page."""
    with skip_schema_checks():
        drawn = {name: FIGURES[name].panels(run) for name in figure_names()}
    return {name: panels for name, panels in drawn.items() if panels}


_BUILT_IN: dict[str, Figure[Run]] = {
    "scores": Figure(
        "Scores over the rounds",
        "Thick: held-out domains, which were not used in training. Thin: the sources' validation data. "
        "The dashed line is the round whose model was kept. Click a name to single it out.",
        curves.score_curves,
        width="full",
        order=10,
    ),
    "client-scores": Figure(
        "Scores of the clients' own models",
        "Each client's model before it is merged, on every domain (--evaluate-clients). Thick: held-out "
        "domains. Thin: the sources' validation data.",
        curves.client_score_curves,
        width="full",
        order=15,
    ),
    "confusion": Figure(
        "Confusion of classes",
        "Held-out data only. In a matrix, each row is a true class; the stronger the colour, the more often "
        "the class below was predicted. A perfect model fills only the diagonal.",
        prediction_figures.confusion,
        order=20,
    ),
    "class-accuracy": Figure(
        "Accuracy of each class",
        "Held-out data only, the hardest class first.",
        prediction_figures.class_accuracy,
        order=30,
    ),
    "scatter": Figure(
        "Prediction against truth",
        "Held-out data only. On the dashed line a prediction equals the truth.",
        prediction_figures.truth_against_prediction,
        order=40,
    ),
    "reliability": Figure(
        "Reliability of the probabilities",
        "Answers in 15 bins of confidence, and how often they are right. On the dashed line a confidence of "
        "80 % is right in 80 % of cases; below it the model is too sure. Scaled means by what the sources' "
        "validation samples gave.",
        calibration_report.reliability_diagram,
        order=45,
    ),
    "samples": Figure(
        "Samples per domain and class",
        "All samples, before they are split into training, validation and test data.",
        prediction_figures.sample_counts,
        width="full",
        order=50,
    ),
    "loss": Figure(
        "Training loss",
        "Mean over the clients of each round.",
        curves.training_loss,
        width="third",
        order=60,
    ),
    "time": Figure(
        "Time per round",
        "Seconds spent in each round.",
        costs.time_per_round,
        width="third",
        order=70,
    ),
    "bytes": Figure(
        "Traffic per round",
        "Bytes sent in each round, over all clients.",
        costs.bytes_per_round,
        width="third",
        order=80,
    ),
    "transferability": Figure(
        "Transferability of classes between domains",
        "A circle is one class of one domain, its size the number of samples. Circles of a class that are "
        "close together have similar features across domains.",
        method_figures.transferability_graph,
        order=90,
    ),
    "features": Figure(
        "Features (t-SNE)",
        "Each dot is a sample; t-SNE places samples with similar features close together, while large "
        "distances in the plot mean little. Good features separate classes and mix domains.",
        embedding.feature_maps,
        width="full",
        order=100,
    ),
    "layer-weights": Figure(
        "Weight of each client in a layer",
        "The fraction of the merged layer that comes from each client, over the rounds.",
        method_figures.layer_weights,
        width="full",
        order=110,
    ),
    "attention": Figure(
        "Attention between layers",
        "Weight of each of a client's own layers, in the columns, for a layer of the merged model. "
        "Layers are counted from the input, every row sums to one. Mean of the clients.",
        method_figures.attention,
        order=120,
    ),
    "distances": Figure(
        "Distances between the clients' models",
        "Root mean square of the distance of two clients' weights in a layer, before they are merged. Where "
        "clients of different domains are farther apart than those of one, the layer is domain-specific.",
        method_figures.model_distances,
        order=130,
    ),
    "diagnostics": Figure(
        "Diagnostics of the method",
        "Numbers that the method recorded about itself.",
        diagnostics.diagnostics,
        width="full",
        order=140,
    ),
}

for _name, _figure in _BUILT_IN.items():
    FIGURES.register(_name)(_figure)
