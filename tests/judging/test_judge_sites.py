"""Judging on this machine: classes, values, groups, ONNX files, several places, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score
from torch import nn

import unseen
from unseen.data import DataRequest, load_data
from unseen.data.tables.encoding import TableEncoding, align_columns
from unseen.errors import UnseenError, UsageError
from unseen.judging import Judgement, judge, load_judgement
from unseen.serving import export_model, load_model


@pytest.fixture(scope="module")
def digits():
    return load_data(DataRequest("rotated-digits"))


@pytest.fixture(scope="module")
def judged(digit_runs) -> Judgement:
    return judge(*digit_runs, data="rotated-digits", domains=("60", "75"))


def probabilities(run: Path, digits, domain: str):
    rows = digits.indices(domain)
    inputs = torch.from_numpy(digits.inputs[rows]).permute(0, 3, 1, 2)
    return load_model(run).outputs(inputs).double().softmax(dim=1).numpy(), digits.targets[rows]


def test_metrics_are_those_of_scikit_learn_on_the_models_own_outputs(judged, digit_runs, digits):
    for model, run in enumerate(digit_runs):
        for site in ("60", "75"):
            chances, targets = probabilities(run, digits, site)
            accuracy = (chances.argmax(axis=1) == targets).mean()
            assert judged.metric("accuracy", site=site, model=model) == pytest.approx(accuracy)
            area = roc_auc_score(targets, chances, multi_class="ovr")
            assert judged.metric("auroc", site=site, model=model) == pytest.approx(area, abs=1e-9)
    worst = judged.values["worst"][0]["accuracy"]
    assert worst["value"] == min(judged.metric("accuracy", site=site) for site in ("60", "75"))


def test_mcnemar_counts_the_samples_on_which_the_models_differ(judged, digit_runs, digits):
    only = np.zeros(2, dtype=int)
    for site in ("60", "75"):
        (first, targets), (second, _) = (probabilities(run, digits, site) for run in digit_runs)
        a, b = (each.argmax(axis=1) == targets for each in (first, second))
        only += [(a & ~b).sum(), (b & ~a).sum()]
    test = judged.tests[0]
    assert [test["only_first"], test["only_second"]] == only.tolist()
    assert test["p_value"] < 1e-6 and judged.tests[1]["metric"] == "auroc"


def test_all_sites_together_are_one_place_with_all_samples(judged, digit_runs, digits):
    """Pooled equals federated to 1e-9 where sums add up; the ranking across sites within its stated width."""
    rows = np.concatenate([digits.indices("60"), digits.indices("75")])
    both = unseen.from_arrays(digits.inputs[rows, ..., 0], digits.targets[rows], ["all"] * len(rows))
    whole = judge(*digit_runs, data=both)
    sums = ("accuracy", "balanced_accuracy", "macro_f1", "ece", "brier", "nll")
    for model in (0, 1):
        for name in sums:
            expected = whole.metric(name, site="all", model=model)
            assert judged.metric(name, model=model) == pytest.approx(expected, abs=1e-9)
        for name, exact in (("auroc_across_sites", "auroc"), ("auprc", "auprc")):
            score = judged.pooled["metrics"][model][name]
            exactly = whole.metric(exact, site="all", model=model)
            assert abs(score["value"] - exactly) <= score["width"] + 1e-12
    assert judged.tests[0]["p_value"] == pytest.approx(whole.tests[0]["p_value"], abs=1e-9)


def test_a_judgement_is_kept_with_its_checksum_and_as_a_frame(judged, tmp_path):
    file = judged.save(tmp_path / "out")
    assert load_judgement(tmp_path / "out").values == judged.values
    frame = judged.frame("pandas")
    found = frame[(frame["where"] == "75") & (frame["metric"] == "accuracy") & (frame["model"] == "run3")]
    assert found["value"].tolist() == [judged.metric("accuracy", site="75", model=1)]
    file.write_text(file.read_text().replace('"classification"', '"regression"'))
    with pytest.raises(UnseenError, match=r"judgement\.json is damaged or was edited"):
        load_judgement(tmp_path / "out")
    with pytest.raises(UsageError, match=r"has no judgement\.json"):
        load_judgement(tmp_path)


def test_an_exported_model_is_judged_like_the_run(judged, digit_runs, tmp_path):
    file = export_model(digit_runs[1], out=tmp_path / "model.onnx").file
    found = judge(file, digit_runs[1], data="rotated-digits", domains=("75",))
    assert found.metric("accuracy") == judged.metric("accuracy", site="75", model=1)
    assert found.metric("auroc") == pytest.approx(judged.metric("auroc", site="75", model=1), abs=1e-6)
    assert [model["kind"] for model in found.values["models"]] == ["ONNX", "Unseen"]
    assert found.tests[0]["p_value"] == 1.0


class Foreign(nn.Module):
    """A network of somebody else: probabilities of two classes, from pixels between 0 and 1."""

    def __init__(self, *, single: bool = False) -> None:
        super().__init__()
        self.single = single

    def forward(self, images):
        bright = (images.mean(dim=(1, 2, 3)) * 8 - 4).sigmoid()
        return bright[:, None] if self.single else torch.stack([1 - bright, bright], dim=1)


def write_onnx(module: nn.Module, file: Path, example: torch.Tensor) -> Path:
    program = torch.onnx.export(module.eval(), (example,), dynamo=True, verbose=False,
                                dynamic_shapes=({0: torch.export.Dim("batch")},))  # fmt: skip
    program.save(file, external_data=False)
    return file


@pytest.fixture(scope="module")
def shades(tmp_path_factory) -> Path:
    """Two sites with dark and bright images."""
    folder, generator = tmp_path_factory.mktemp("shades"), np.random.default_rng(0)
    for site in ("a", "b"):
        for label, level in (("bright", 140), ("dark", 110)):
            (folder / site / label).mkdir(parents=True)
            for number in range(12):
                pixels = np.clip(generator.normal(level, 25) + np.zeros((8, 8, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / site / label / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("foreign")
    example = torch.rand(2, 3, 8, 8)
    return tuple(
        write_onnx(Foreign(single=single), folder / f"single{single}.onnx", example)
        for single in (False, True)
    )


def test_a_foreign_classifier_is_judged_by_its_probabilities(foreign, shades):
    names = ("dark", "bright")
    both = [judge(file, data=shades, classes=names, pixels="unit") for file in foreign]
    for name, score in both[0].pooled["metrics"][0].items():  # one number is the second class's
        assert both[1].metric(name) == pytest.approx(score["value"], abs=1e-6)
    scores = {}
    for site in ("a", "b"):
        levels = [(np.asarray(Image.open(file)).mean(), label == "bright")
                  for label in names for file in sorted((shades / site / label).iterdir())]  # fmt: skip
        values, truth = map(np.array, zip(*levels, strict=True))
        scores[site] = roc_auc_score(truth, values)
        assert both[0].metric("auroc", site=site) == pytest.approx(scores[site], abs=1e-9)
        assert both[0].metric("accuracy", site=site) == ((values > 127.5) == truth).mean()
    assert both[0].metric("auroc") == pytest.approx(np.mean(list(scores.values())))
    places = judge(foreign[0], data=[f"first={shades / 'a'}", shades / "b"], classes=names, pixels="unit")
    assert list(places.sites) == ["b", "first"] and places.sites["first"] == both[0].sites["a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": ("dark", "bright")}, "does not say what its pixels are: give --pixels"),
        ({"classes": ("dark", "bright"), "pixels": "0-1"}, "unknown kind of pixels"),
        ({"pixels": "unit"}, "classes of an ONNX file are named with --class"),
        ({"classes": ("dark", "grey"), "pixels": "unit"}, "unknown class"),
        ({"classes": ("a", "b", "c"), "pixels": "unit"}, "unknown class"),
        ({"classes": ("dark", "bright", "grey"), "pixels": "unit"}, "no output of 3 numbers per sample"),
    ],
)
def test_what_an_onnx_file_lacks_is_asked_for(foreign, shades, options, said):
    with pytest.raises(UsageError, match=said) as caught:
        judge(foreign[0], data=shades, **options)
    assert "\n" not in str(caught.value)


def test_values_of_a_table_in_its_own_unit(price_runs, prices):
    found = judge(
        *price_runs, data=prices, domain_column="place", target="price", group_columns=("kind", "rooms")
    )
    table = load_data(DataRequest(str(prices), domain_column="place", target_column="price"))
    rows = table.indices("west")
    saved = load_model(price_runs[1])
    encoding = TableEncoding.from_dict(saved.card.encoding)
    predicted = saved.outputs(torch.from_numpy(encoding.apply(align_columns(table, encoding.columns)[rows])))
    truth = table.targets[rows]
    assert found.metric("mae", site="west", model=1) == pytest.approx(
        mean_absolute_error(truth, predicted[:, 0]), rel=1e-6
    )
    assert found.metric("r2", site="west", model=1) == pytest.approx(
        r2_score(truth, predicted[:, 0]), abs=1e-6
    )
    assert found.tests[0]["metric"] == "mae" and found.tests[0]["test"] == "a paired t-test"
    assert found.tests[0]["difference"] == pytest.approx(
        found.metric("mae", model=1) - found.metric("mae"), abs=1e-9
    )
    kinds, rooms = found.sites["west"]["groups"]
    assert {each["name"] for each in kinds["groups"]} <= {"flat", "house"}  # one boat per place
    assert [each["name"] for each in rooms["groups"]] == ["0", "1", "2", "3"]
    assert sum(each["samples"] for each in rooms["groups"]) == 60 and rooms["hidden"] == 0
    total = sum(each["samples"] * each["metrics"][0]["mae"]["value"] for each in rooms["groups"])
    assert total / 60 == pytest.approx(found.metric("mae", site="west"))


def test_small_groups_are_hidden_and_cannot_be_subtracted(price_runs, prices):
    options = {"domain_column": "place", "target": "price", "group_columns": ("kind",)}
    found = judge(price_runs[0], data=prices, **options)
    for site in found.sites.values():
        shown = [each["samples"] for each in site["groups"][0]["groups"]]
        assert min(shown) >= 5 and site["groups"][0]["hidden"] >= 5
        assert sum(shown) + site["groups"][0]["hidden"] == 60
    every = judge(price_runs[0], data=prices, min_group=1, **options)
    assert {each["name"] for each in every.pooled["groups"][0]["groups"]} == {"boat", "flat", "house"}


def test_sites_with_too_few_samples_are_told_and_others_go_on(digit_runs, digits):
    rows = np.concatenate([digits.indices("60"), digits.indices("75")[:12]])
    places = ["many"] * len(digits.indices("60")) + ["few"] * 12
    data = unseen.from_arrays(digits.inputs[rows, ..., 0], digits.targets[rows], places)
    found = judge(digit_runs[0], data=data)
    assert (
        list(found.sites) == ["many"]
        and "no class of site 'few' has 5 samples" in found.values["refused"]["few"]
    )
    with pytest.raises(UnseenError, match="no site could judge the model: few: no class"):
        judge(digit_runs[0], data=data, domains=("few",))


def test_bad_input_is_one_line(digit_runs, price_runs, prices, shades, tmp_path):
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no model")
    bad = [
        ((tmp_path / "none",), {"data": shades}, "no such file or folder"),
        ((junk,), {"data": shades}, "is no ONNX model that onnxruntime can read"),
        ((digit_runs[0], price_runs[0]), {"data": "rotated-digits"}, "do not predict the same"),
        ((digit_runs[0],), {"data": "rotated-digits", "domains": ("80",)}, "unknown domain"),
        ((digit_runs[0],), {"data": shades}, "unknown class"),
        ((digit_runs[0],), {"data": "rotated-digits", "min_group": 0}, "at least 1"),
        ((digit_runs[0],), {"data": "rotated-digits", "classes": ("a",)}, "are for ONNX files"),
        ((digit_runs[0],), {"data": []}, "name the data"),
        ((digit_runs[0],), {"data": [shades / "a", f"a={shades / 'b'}"]}, "two places of one site"),
        ((digit_runs[0],), {"data": "rotated-digits", "group_columns": ("kind",)}, "no such column"),
        ((price_runs[0],), {"data": prices}, "unknown column"),
        ((price_runs[0],), {"data": shades}, "was trained on a table|has classes"),
    ]
    for models, options, said in bad:
        with pytest.raises(UnseenError, match=said) as caught:
            judge(*models, **options)
        assert "\n" not in str(caught.value)
    options = {"domain_column": "place", "target": "price"}
    with pytest.raises(UsageError, match="different numbers there"):
        judge(price_runs[0], data=prices, group_columns=("size",), **options)


def test_a_model_that_answers_no_numbers_is_refused(shades, tmp_path):
    class Broken(Foreign):
        def forward(self, images):
            return super().forward(images) / (images.mean(dim=(1, 2, 3))[:, None] < -1)

    file = write_onnx(Broken(), tmp_path / "broken.onnx", torch.rand(2, 3, 8, 8))
    with pytest.raises(UnseenError, match="not a finite number"):
        judge(file, data=shades, classes=("dark", "bright"), pixels="unit")
