"""An exported file says how sure it is exactly as the Python model does, in plain onnxruntime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.calibration.artifact import Calibration
from unseen.calibration.conformal import SCORES, class_scores
from unseen.calibration.moments import Moments, moment_sums
from unseen.calibration.scaling import Scaling
from unseen.calibration.site_reference import DISTANCE_EDGES, ENERGY_EDGES, SiteReference, fit_reference
from unseen.data import DataRequest, DataSet, load_data
from unseen.models import InputSpec, build_model
from unseen.serving import SavedModel, export_model, load_model, save_model
from unseen.serving.certainty import (
    CALIBRATED,
    DISTANCE,
    ENERGY,
    INTERVAL,
    SET,
    UNUSUAL,
    CertaintyGraph,
    judge_outputs,
)
from unseen.serving.onnx_export import compare

REAL = os.environ.get("UNSEEN_DATA", "")
PLAIN = """
import sys, numpy, onnxruntime
file, inputs, out = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
inputs = numpy.load(inputs)
for size in (1, 3, 17, len(inputs)):
    found = session.run(None, {session.get_inputs()[0].name: inputs[:size]})
    numpy.savez(f"{out}-{size}.npz", **dict(zip(names, found)))
assert not {"unseen", "torch"} & set(sys.modules)
"""


def run_elsewhere(file: Path, inputs: torch.Tensor, folder: Path) -> dict[int, dict[str, npt.NDArray[Any]]]:
    """Run a file in a process that imports onnxruntime alone, at several batch sizes."""
    np.save(folder / "inputs.npy", inputs.float().numpy())
    command = [sys.executable, "-c", PLAIN, str(file), str(folder / "inputs.npy"), str(folder / "found")]
    subprocess.run(command, check=True, capture_output=True)
    return {
        size: dict(np.load(folder / f"found-{size}.npz")) for size in dict.fromkeys((1, 3, 17, len(inputs)))
    }


def require_same(saved: SavedModel, inputs: torch.Tensor, found: dict[int, dict[str, Any]]) -> None:
    """Numbers within 1e-5 (of values above 1: of their ratio); sets and flags exactly, but next to limits."""
    for size, theirs in found.items():
        outputs, features = saved.outputs_and_features(inputs[:size])
        expected = judge_outputs(saved, outputs, features)
        assert expected.keys() <= theirs.keys()
        for name in expected.keys() - {SET, UNUSUAL}:
            assert theirs[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name
        if SET in expected:
            scores = class_scores(expected[CALIBRATED], saved.calibration.default["score"])
            clear = np.abs(scores - saved.calibration.limit()) > 1e-5
            assert clear.mean() > 0.99 and (theirs[SET] == expected[SET])[clear].all()
        if UNUSUAL in expected:
            limit = saved.reference.limits["distance"].value
            clear = np.abs(expected[DISTANCE] - (np.inf if limit is None else limit)) > 1e-5
            assert clear.any() and (theirs[UNUSUAL] == expected[UNUSUAL])[clear].all()


def pretend_calibrated(saved: SavedModel, inputs: torch.Tensor) -> SavedModel:
    """Return the model with a calibration and moments of these inputs, as if they were two sources."""
    outputs, features = saved.outputs_and_features(inputs)
    values, vectors = outputs.double().numpy(), features.double().numpy()
    moments, scores = {}, {}
    for name, part in (("one", slice(0, None, 2)), ("two", slice(1, None, 2))):
        sums, products = moment_sums(vectors[part])
        moments[name] = Moments(len(vectors[part]), sums, products, np.zeros(values.shape[1], np.int64))
        counts = {"distance": DISTANCE_EDGES, "energy": ENERGY_EDGES}
        scores[name] = {
            key: 40 * np.bincount([700], minlength=len(edges) + 1) for key, edges in counts.items()
        }
    reference = fit_reference(moments, scores)
    middle = float(np.median(reference.gaussian.distances(vectors)))
    limits = {name: vars(limit) for name, limit in reference.limits.items()}
    limits["distance"]["value"] = middle
    calibration = Calibration(Scaling("temperature", (0.7,)), {"aps": {"0.9": {"widened": 0.93}}}, {"one": 9})
    card = replace(
        saved.card,
        calibration=calibration.to_dict(),
        site_reference=reference.to_dict() | {"limits": limits},
    )
    return SavedModel(saved.network, card)


def test_held_out_digits_get_the_same_answers_without_this_package(digits_run, digits: DataSet, tmp_path):
    saved = load_model(digits_run)
    exported = export_model(digits_run, out=tmp_path / "digits.onnx")
    rows = digits.indices("75")[:200]
    inputs = torch.from_numpy(digits.inputs[rows]).permute(0, 3, 1, 2)
    found = run_elsewhere(exported.file, inputs, tmp_path)
    require_same(saved, inputs, found)
    sizes = found[200][SET].sum(axis=1)
    assert found[200][SET].dtype == found[200][UNUSUAL].dtype == bool
    assert len(set(sizes.tolist())) > 1 and found[200][UNUSUAL].sum() > 0
    assert list(found[3]) == ["probabilities", "logits", CALIBRATED, SET, DISTANCE, UNUSUAL, ENERGY]
    told = {output["name"]: output for output in exported.facts["outputs"]}
    assert told[SET]["threshold"] == saved.calibration.limit() and told[SET]["promise"] == 0.9
    assert told[UNUSUAL]["limit"] == saved.reference.limits["distance"].value
    assert list(told) == list(found[3])


def test_the_file_needs_no_operators_but_the_standard_ones(digits_run, tmp_path):
    import onnx

    model = onnx.load(export_model(digits_run, out=tmp_path / "digits.onnx").file)
    assert {entry.domain for entry in model.opset_import} == {""}
    assert model.opset_import[0].version <= 20


def test_rows_of_a_table_get_their_intervals(price_run, tmp_path):
    run, _ = price_run
    saved = load_model(run)
    exported = export_model(run, out=tmp_path / "prices.onnx")
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    found = run_elsewhere(exported.file, inputs, tmp_path)
    require_same(saved, inputs, found)
    assert list(found[1]) == ["values", INTERVAL, DISTANCE, UNUSUAL]
    low, high = found[40][INTERVAL].T
    assert (low < found[40]["values"][:, 0]).all() and (high > found[40]["values"][:, 0]).all()
    assert high - low == pytest.approx(2 * saved.calibration.limit(), rel=1e-4)


def test_a_model_without_calibration_exports_as_before(digits_run, tmp_path):
    saved = load_model(digits_run)
    bare = replace(saved.card, calibration=None, site_reference=None)
    save_model(tmp_path / "bare.safetensors", saved.network.state_dict(), bare)
    exported = export_model(tmp_path / "bare.safetensors")
    found = run_elsewhere(exported.file, torch.zeros(17, 1, 16, 16), tmp_path)
    assert list(found[1]) == ["probabilities", "logits"]
    assert [output["name"] for output in exported.facts["outputs"]] == ["probabilities", "logits"]


def test_a_wrong_limit_in_the_file_is_noticed(digits_run, tmp_path):
    saved = load_model(digits_run)
    exported = export_model(digits_run, out=tmp_path / "digits.onnx")
    inputs = torch.randint(
        256, (32, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    assert compare(saved, exported.file, inputs) <= 1e-5
    narrow = Calibration(saved.calibration.scaling, {"aps": {"0.9": {"widened": 1e-9}}})
    other = SavedModel(saved.network, replace(saved.card, calibration=narrow.to_dict()))
    assert compare(other, exported.file, inputs) == np.inf
    reference: SiteReference = saved.reference
    limits = {name: vars(limit) | {"value": 1e-3} for name, limit in reference.limits.items()}
    shifted = replace(saved.card, site_reference=reference.to_dict() | {"limits": limits})
    assert compare(SavedModel(saved.network, shifted), exported.file, inputs) == np.inf


@given(
    logits=st.lists(st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5), min_size=1, max_size=8),
    score=st.sampled_from(SCORES),
    limit=st.floats(0.01, 0.99) | st.none(),
    weights=st.lists(st.floats(0.1, 5), min_size=5, max_size=5),
)
def test_the_graph_has_the_arithmetic_of_the_python_model(digits_run, logits, score, limit, weights):
    saved = load_model_once(digits_run)
    scaling = Scaling("vector", tuple(weights), (0.0, 0.1, -0.2, 0.3, 0.0))
    default = {"score": score, "promise": 0.9, "rule": "widened"}
    calibration = Calibration(scaling, {score: {"0.9": {"widened": limit}}}, {}, default)
    card = replace(saved.card, calibration=calibration.to_dict(), classes=tuple("abcde"), site_reference=None)
    model, values = SavedModel(saved.network, card), torch.tensor(logits)
    graph = CertaintyGraph(model)
    found = dict(zip(graph.names, graph(values, None), strict=True))
    expected = judge_outputs(model, values, None)
    assert found[CALIBRATED].numpy() == pytest.approx(expected[CALIBRATED], abs=1e-6)
    chances = expected[CALIBRATED]
    ties = np.any(np.abs(np.diff(np.sort(chances, axis=1), axis=1)) < 1e-12, axis=1)
    near = np.zeros(len(chances), bool)
    if limit is not None:
        near = np.any(np.abs(class_scores(chances, score) - limit) < 1e-12, axis=1)
    clear = ~(ties | near)
    assert np.array_equal(found[SET].numpy()[clear], expected[SET][clear])


_LOADED: dict[Path, SavedModel] = {}


def load_model_once(run: Path) -> SavedModel:
    return _LOADED.setdefault(run, load_model(run))


@pytest.mark.real_data
@pytest.mark.skipif(not REAL, reason="UNSEEN_DATA does not point to the data sets")
def test_photographs_get_the_same_answers(digits_run, tmp_path):
    if find_spec("timm") is None:
        pytest.skip("resnet18 needs timm")
    data = load_data(DataRequest("pacs", root=Path(REAL), image_size=64))
    rows = np.concatenate([data.indices(domain)[::60] for domain in data.domains])
    inputs = torch.from_numpy(np.stack([data.inputs[row] for row in rows])).permute(0, 3, 1, 2)
    network = build_model("resnet18", InputSpec((3, 64, 64), 7), seed=3).eval()
    card = replace(
        load_model(digits_run).card,
        model="resnet18",
        input_shape=(3, 64, 64),
        outputs=7,
        classes=data.classes,
        pixel_mean=(0.485, 0.456, 0.406),
        pixel_std=(0.229, 0.224, 0.225),
        settings={},
        calibration=None,
        site_reference=None,
    )
    saved = pretend_calibrated(SavedModel(network, card), inputs)
    save_model(tmp_path / "photos.safetensors", network.state_dict(), saved.card)
    saved = load_model(tmp_path / "photos.safetensors")
    exported = export_model(tmp_path / "photos.safetensors")
    found = run_elsewhere(exported.file, inputs, tmp_path)
    require_same(saved, inputs, found)
    assert 0 < found[len(rows)][UNUSUAL].mean() < 1
    assert json.loads(exported.description.read_text())["check"]["largest_difference"] <= 1e-5


@pytest.mark.parametrize(("score", "limit"), [("lac", 0.8), ("raps", 0.6), ("aps", None)])
def test_every_score_is_exported(digits_run, digits: DataSet, tmp_path, score, limit):
    saved = load_model(digits_run)
    default = {"score": score, "promise": 0.9, "rule": "widened"}
    calibration = Calibration(saved.calibration.scaling, {score: {"0.9": {"widened": limit}}}, {}, default)
    card = replace(saved.card, calibration=calibration.to_dict(), site_reference=None)
    save_model(tmp_path / "model.safetensors", saved.network.state_dict(), card)
    exported = export_model(tmp_path / "model.safetensors")
    inputs = torch.from_numpy(digits.inputs[digits.indices("75")[:60]]).permute(0, 3, 1, 2)
    found = run_elsewhere(exported.file, inputs, tmp_path)[60][SET]
    expected = judge_outputs(SavedModel(saved.network, card), saved.outputs(inputs), None)[SET]
    assert np.array_equal(found, expected)
    assert found.all() == (limit is None)
