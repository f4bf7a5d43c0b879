"""Finish a run: evaluate the selected model in detail, compute the result from the records, save both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from unseen.calibration import SiteReference
from unseen.checksums import write_sealed_text
from unseen.data import Indices, Samples
from unseen.engine import Engine, Experiment, NoAnswer, ServerLoop, Workspace, evaluation_record
from unseen.engine.experiment import EvaluationSet
from unseen.errors import UnseenError
from unseen.evaluation.evaluate import GroupedAccumulator, predict_batches, summarize_groups
from unseen.evaluation.selection import VALIDATION_DOMAIN, LastRound, Oracle, mean_metric, select
from unseen.fileio import to_json, write_text
from unseen.privacy import DisclosureEntry, DisclosureLog, sum_disclosures
from unseen.report.png import encode_png
from unseen.runner.calibrate import (
    ScalingFit,
    describe_calibration,
    describe_histograms,
    detailed_measurement,
    summarize_calibration,
)
from unseen.runner.experiment_setup import normalization
from unseen.runner.prepare import Setup
from unseen.runner.site_moments import MomentsFit, with_sites
from unseen.runner.start_record import validation_domains
from unseen.runs.records import Record, plain
from unseen.seeding import numpy_generator
from unseen.serving import save_model
from unseen.serving.saved_model import ModelCard
from unseen.tasks import TASKS, goodness
from unseen.tasks.accumulators import ClassificationAccumulator, MetricAccumulator
from unseen.tasks.detail_accumulators import DetailAccumulator

SCATTER = "targets of samples with their predictions, for the report"
PICTURES = "example images, for the report"
EXAMPLES = 12
SCATTER_POINTS = 500


def finalize(setup: Setup, loop: ServerLoop) -> dict[str, Any]:
    """Evaluate the selected model in detail; write model and result, and return the result."""
    config, experiment, checkpoint = setup.config, setup.experiment, loop.checkpoint
    task, protection = experiment.data.task, experiment.protection
    final = evaluate_in_detail(
        loop.engine,
        checkpoint.selected,
        loop.selected_round(),
        calibrate=config.calibrate,
        site_moments=config.site_moments,
    )
    loop.record("final", **final.record)
    loop.records.sync()
    if final.histograms:
        described = {**final.record["calibration"], "sets": final.histograms}
        write_text(loop.folder.calibration, json.dumps(plain(described), ensure_ascii=False) + "\n")
    outcome = make_result(loop.records.entries, selection=config.selection, task=task)
    values = {
        "run_id": setup.run_id,
        "method": config.method,
        "model": config.model,
        "data": experiment.data.name,
        "task": task,
        "held_out": list(config.hold_out),
        **validation_domains(config),
        "seed": config.seed,
        "rounds": config.rounds,
        "client_weights": experiment.method.weights_text,
        **outcome,
        "seconds": round(checkpoint.seconds, 3),
        "privacy": list(dict.fromkeys(line["kind"] for line in outcome["left"])),
        "protection": {
            "name": protection.name,
            "statement": protection.statement(),
            **protection.privacy_spent(checkpoint.protection),
        },
    }
    save_model(
        loop.folder.model,
        loop.engine.workspace.whole_tensors(checkpoint.selected),
        _model_card(setup, final.record.get("calibration"), final.reference),
    )
    write_sealed_text(loop.folder.result, to_json(values))
    return values


def _model_card(
    setup: Setup, calibration: dict[str, Any] | None, reference: SiteReference | None
) -> ModelCard:
    experiment, data = setup.experiment, setup.experiment.original_data
    normalize = normalization(data, experiment.whole or experiment.network)
    return ModelCard(
        model=cast(str, setup.config.model),
        method=setup.config.method,
        settings=dict(setup.config.settings),
        task=data.task,
        classes=data.classes,
        input_shape=data.input_shape,
        outputs=data.outputs,
        pixel_mean=normalize.mean,
        pixel_std=normalize.std,
        encoding=setup.encoding.to_dict() if setup.encoding else None,
        data=data.name,
        held_out=setup.config.hold_out,
        run_id=setup.run_id,
        sources=experiment.federation.sources,
        measured=data.is_measured,
        calibration=cast("dict[str, Any] | None", plain(calibration)),
        site_reference=cast("dict[str, Any] | None", plain(reference.to_dict() if reference else None)),
    )


class FinalEvaluation(NamedTuple):
    """The final record, the histograms of conformal scores, which have a file of their own, and moments."""

    record: Record
    histograms: list[dict[str, Any]]
    reference: SiteReference | None


def evaluate_in_detail(
    engine: Engine, weights: torch.Tensor, selected_round: int, *, calibrate: str, site_moments: str
) -> FinalEvaluation:
    """Calibrate these weights, and evaluate them in the detail that the report shows.

    Single samples (images, points) are shown only if this process has the data anyway.
    """
    workspace = engine.workspace
    experiment = workspace.experiment
    fit = ScalingFit(engine, weights, left=[])
    scaling = fit.fit(calibrate)
    moments = MomentsFit(engine, weights, scaling, left=[])
    reference, sites = moments.fit() if site_moments == "auto" else (None, [])
    sets = experiment.evaluation_sets("validation", VALIDATION_DOMAIN, "test", "target")
    measurement = detailed_measurement(engine, scaling)
    sets, accumulators = _keep_answered(sets, engine.evaluate(weights, sets, measurement))
    workspace.flat.load(weights)
    record: Record = {"round": selected_round, **evaluation_record(experiment, sets, accumulators)}
    record["left"] = fit.left + moments.left + record["left"]
    record = with_sites(record, reference, sites)
    calibration, entries = describe_calibration(
        sets, accumulators, scaling, target_scale=experiment.target_scale
    )
    for entry, more in zip(record["scores"], entries, strict=True):
        entry.update(more)
    if calibration:
        record["calibration"] = calibration
    return FinalEvaluation(
        _with_shown_samples(record, engine, sets, accumulators),
        describe_histograms(sets, accumulators),
        reference,
    )


def _with_shown_samples(
    record: Record,
    engine: Engine,
    sets: Sequence[EvaluationSet],
    accumulators: Sequence[MetricAccumulator],
) -> Record:
    """Add accuracies per class, confusions, and, where this process has the data, images or points."""
    workspace = engine.workspace
    experiment = workspace.experiment
    confusion = []
    for (domain, split), found, entry in zip(sets, accumulators, record["scores"], strict=True):
        whole = found.merge_groups() if isinstance(found, GroupedAccumulator) else found
        whole = whole.plain if isinstance(whole, DetailAccumulator) else whole
        if isinstance(whole, ClassificationAccumulator):
            entry["per_class"] = dict(zip(experiment.data.classes, whole.per_class(), strict=True))
            if split == "target":
                confusion.append({"domain": domain, "matrix": whole.confusion.tolist()})
    shown = DisclosureLog()
    if not experiment.data.task_type.has_classes:
        scatter = _scatter(workspace) if engine.holds_data else []
        for plot in scatter:
            numbers = 2 * len(plot["truth"])
            shown.add(plot["domain"], [DisclosureEntry(SCATTER, numbers, 8 * numbers)])
        return {**record, "scatter": scatter, "left": record["left"] + shown.entries()}
    pictures = experiment.original_data.is_image and not experiment.original_data.is_measured
    examples = _examples(workspace) if pictures and engine.holds_data else []
    if examples:
        sizes = sum(len(example["png"]) * 3 // 4 for example in examples)
        shown.add(examples[0]["domain"], [DisclosureEntry(PICTURES, len(examples), sizes)])
    return {
        **record,
        "confusion": confusion,
        "examples": examples,
        "left": record["left"] + shown.entries(),
    }


def _keep_answered(
    sets: Sequence[EvaluationSet], answers: Sequence[MetricAccumulator | NoAnswer]
) -> tuple[list[EvaluationSet], list[MetricAccumulator]]:
    """Keep the sets that were evaluated. Held-out domains are required; a source may have left for good."""
    for (domain, split), answer in zip(sets, answers, strict=True):
        if isinstance(answer, NoAnswer) and split == "target":
            raise UnseenError(
                f"the final evaluation lacks the held-out domain {domain}: {answer.reason}; "
                "all rounds are kept, continue with --resume once it is back"
            )
    found = [
        (key, answer) for key, answer in zip(sets, answers, strict=True) if not isinstance(answer, NoAnswer)
    ]
    return [key for key, _ in found], [accumulator for _, accumulator in found]


def make_result(records: Sequence[Record], *, selection: str, task: str) -> dict[str, Any]:
    """Derive metrics, times and bytes from the records alone."""
    final = next(record for record in reversed(records) if record["event"] == "final")
    rounds = [record for record in records if record["event"] == "round"]
    primary = TASKS[task].primary_metric
    targets = [score for score in final["scores"] if score["split"] == "target"]
    judged_on = [score for score in final["scores"] if score["split"] != "test"]
    worst = min(judged_on, key=lambda score: goodness(primary, score["metrics"][primary]))
    parts = {
        "target": _means(final, "target", primary),
        "target_oracle": _means(select(records, Oracle.name, task), "target", primary),
        "target_last": _means(select(records, LastRound.name, task), "target", primary),
        "source_validation": _means(final, "validation", primary),
        "in_domain": _means(final, "test", primary),
        "worst_domain": {"domain": worst["domain"], primary: worst["metrics"][primary]},
    }
    if chosen_by := _means(final, VALIDATION_DOMAIN, primary):
        parts["validation_domains"] = chosen_by
    if groups := summarize_groups(final, "target", primary):
        parts["worst_group"] = {"group": groups["group"], primary: groups["worst"]}
    stops = [record for record in records if record["event"] == "stop"]
    return {
        "selected_round": final["round"],
        **({"stopped": {key: stops[-1][key] for key in ("round", "reason")}} if stops else {}),
        "selection": selection,
        "metrics": parts,
        "target_domains": {score["domain"]: score["metrics"] for score in targets},
        "bytes_up": sum(record["bytes_up"] for record in rounds),
        "bytes_down": sum(record["bytes_down"] for record in rounds),
        "left": sum_disclosures(records),
        **summarize_calibration(final),
    }


DIVERGED_LOSS = 1e6
"""Mean loss of a sample above which a model is of no use, whatever the task: targets are standardized."""


def explain_divergence(result: Mapping[str, Any]) -> str:
    """Say so if the selected model's loss on the sources is not finite or enormous; empty if it is usual."""
    parts = (result["metrics"].get(name) for name in ("source_validation", "in_domain", "target"))
    found = next((part for part in parts if part and "loss" in part), {"loss": 0.0})
    loss = found["loss"]
    if loss is not None and loss <= DIVERGED_LOSS:
        return ""
    seen = "not a finite number" if loss is None else f"{loss:.3g}"
    return f"training diverged: the selected model's loss is {seen}; a lower --lr often helps"


def _means(evaluation: Record | None, split: str, primary: str) -> dict[str, Any] | None:
    """Average every metric over the domains of a split, and add its groups' metrics; None without domains."""
    found = [score for score in (evaluation or {"scores": []})["scores"] if score["split"] == split]
    if evaluation is None or not found:
        return None
    means = {name: mean_metric(evaluation, split, name) for name in found[0]["metrics"]}
    known = {name: None if math.isnan(value) else value for name, value in means.items()}
    if groups := summarize_groups(evaluation, split, primary):
        known |= {f"pooled_{primary}": groups["pooled"], f"worst_group_{primary}": groups["worst"]}
    return known


def _outputs(workspace: Workspace, rows: Indices) -> torch.Tensor:
    samples = Samples(workspace.experiment.data, rows)
    batches = predict_batches(workspace.deployed, samples, prepare=workspace.experiment.prepare)
    return torch.cat([outputs for outputs, _ in batches]).cpu()


def _scatter(workspace: Workspace) -> list[dict[str, Any]]:
    """Return truth and prediction of some held-out samples, in the target's unit."""
    experiment = workspace.experiment
    plots = []
    for domain in experiment.federation.held_out:
        rows = experiment.federation.target_indices(domain)[:SCATTER_POINTS]
        predicted = _outputs(workspace, rows).squeeze(1).numpy()
        both = np.stack([experiment.data.targets[rows], predicted])
        truth, predicted = both * experiment.target_scale + experiment.target_mean
        plots.append({"domain": domain, "truth": truth.tolist(), "predicted": predicted.tolist()})
    return plots


def _examples(workspace: Workspace) -> list[dict[str, Any]]:
    """Return some held-out images with their predictions: as many wrong ones as right ones, if possible."""
    experiment: Experiment = workspace.experiment
    domain = experiment.federation.held_out[0]
    rows = experiment.federation.target_indices(domain)
    generator = numpy_generator(experiment.seed, "example images")
    rows = generator.permutation(rows)[: 20 * EXAMPLES]
    probabilities = _outputs(workspace, rows).softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    truth = experiment.data.targets[rows]
    right = np.flatnonzero(predicted.numpy() == truth)
    wrong = np.flatnonzero(predicted.numpy() != truth)
    half = EXAMPLES // 2
    few_right = right[: max(half, EXAMPLES - len(wrong))]
    chosen = [*few_right, *wrong[: EXAMPLES - len(few_right)]]
    classes = experiment.data.classes
    return [
        {
            "domain": domain,
            "truth": classes[int(truth[place])],
            "predicted": classes[int(predicted[place])],
            "probability": float(confidence[place]),
            "png": encode_png(experiment.original_data.inputs[rows[place]]),
        }
        for place in chosen
    ]
