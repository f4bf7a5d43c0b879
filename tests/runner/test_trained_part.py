"""`--train` with names and with LoRA: only the trained part changes, is sent and is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.engine.round_loop import ServerLoop
from unseen.errors import UsageError
from unseen.models import InputSpec, Layout, build_model, select_trained
from unseen.models.lora import add_lora
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.serving import load_model

QUICK: dict[str, Any] = {
    "data": "tiny",
    "hold_out": "held",
    "model": "mini-vit",
    "rounds": 2,
    "batches_per_epoch": 2,
    "batch_size": 8,
    "lr": 0.05,
    "workers": 1,
}
NAMES = "blocks.3.*,head.*"
LORA = {"train": "lora", "lora_rank": 2}


Finish = Callable[..., Path]


def configure(**options: Any) -> RunConfig:
    return RunConfig.from_mapping({**QUICK, **options})


@pytest.fixture
def finish(make_tiny_data: Callable[..., DataSet]) -> Finish:
    """Run a configuration on the tiny data to its end, or continue it; return its folder."""

    def start(folder: Path, **options: Any) -> Path:
        run(configure(**options), out=folder, report=False, data=make_tiny_data(), resume=True)
        return folder

    return start


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    lines = RunFolder(folder).records.read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == "round"]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(folder).model)


def test_the_run_ids_of_runs_that_train_everything_are_unchanged() -> None:
    assert configure(train="all").identity() == configure(train="all", lora_rank=8).identity()
    ids = {configure(train=train).identity() for train in ("all", "lora", NAMES)}
    assert len(ids) == 3
    assert configure(**LORA).identity() != configure(train="lora").identity()


def test_a_run_from_before_the_option_existed_goes_on(tmp_path: Path, finish: Finish) -> None:
    folder = finish(tmp_path / "run")
    config = RunFolder(folder).config
    kept = [line for line in config.read_text().splitlines() if not line.startswith(("train ", "lora_"))]
    config.write_text("\n".join(kept))
    assert RunConfig.load_recorded(config).train == "all"
    assert finish(folder) == folder


METHODS = ("fedavg", "fedprox", "scaffold", "csac", "fedsr", "moon", "fedadg", "copa", "feddg", "mdfl")


@pytest.mark.parametrize("method", METHODS)
def test_frozen_values_never_change(tmp_path: Path, finish: Finish, method: str) -> None:
    folder = finish(tmp_path, method=method, train=NAMES)
    found = weights_of(folder)
    load_model(folder)
    start = build_model("mini-vit", InputSpec((3, 8, 8), 3), seed=0)
    compared = 0
    for name, tensor in start.state_dict().items():
        same = [other for full, other in found.items() if full == name or full.endswith(f".{name}")]
        if name.startswith(("patches", "positions", "blocks.0", "blocks.1", "blocks.2", "norm")):
            compared += 1
            assert same and all(torch.equal(tensor, other) for other in same), name
        elif name.startswith("blocks.3.perceptron"):
            assert same and not any(torch.equal(tensor, other) for other in same), name
    assert compared > 30


@pytest.mark.parametrize(
    ("method", "average"),
    [
        *((method, "frozen-a") for method in METHODS),
        *(
            pair
            for method in ("fedavg", "moon", "scaffold")
            for pair in ((method, "factors"), (method, "products"))
        ),
    ],
)
def test_lora_changes_attention_and_the_head_only(
    tmp_path: Path, finish: Finish, method: str, average: str
) -> None:
    found = weights_of(finish(tmp_path, method=method, **LORA, lora_average=average))
    start = build_model("mini-vit", InputSpec((3, 8, 8), 3), seed=0)
    for name, tensor in start.state_dict().items():
        same = [other for full, other in found.items() if full == name or full.endswith(f".{name}")]
        trained = name.endswith(("queries_keys_values.weight", "merge.weight"))
        assert same or name.startswith("head"), name
        if not name.startswith("head"):
            assert all(torch.equal(tensor, other) is not trained for other in same), name


@pytest.mark.parametrize("options", [{"train": NAMES}, LORA, {**LORA, "lora_average": "factors"}])
def test_only_trained_numbers_are_sent(tmp_path: Path, finish: Finish, options: dict[str, Any]) -> None:
    folder = finish(tmp_path, **options)
    network = build_model("mini-vit", InputSpec((3, 8, 8), 3), seed=0)
    whole = Layout.of(network).size
    if "lora_rank" in options:
        add_lora(network, rank=2, alpha=16.0, seed=0, freeze_a=options.get("lora_average") != "factors")
    else:
        select_trained(network, NAMES.split(","))
    numbers = Layout.of(network).size
    assert numbers < 0.4 * whole
    for entry in rounds_of(folder):
        assert entry["bytes_up"] == entry["bytes_down"] == 4 * numbers * len(entry["clients"])


@pytest.mark.parametrize(
    "options",
    [{"train": NAMES}, LORA, {**LORA, "lora_average": "products"}, {**LORA, "method": "scaffold"}],
)
def test_resumed_and_parallel_runs_end_with_the_same_bits(
    tmp_path: Path, finish: Finish, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    once = weights_of(finish(tmp_path / "once", **options))
    evaluate = ServerLoop._evaluate

    def fail_in_round_two(self: ServerLoop, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        evaluate(self, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ServerLoop, "_evaluate", fail_in_round_two)
        finish(tmp_path / "resumed", **options)
    finish(tmp_path / "resumed", **options)
    parallel = weights_of(finish(tmp_path / "parallel", **{**options, "workers": 2}))
    for other in (weights_of(tmp_path / "resumed"), parallel):
        assert all(torch.equal(tensor, other[name]) for name, tensor in once.items())


def test_rules_of_averaging_lead_to_different_models(tmp_path: Path, finish: Finish) -> None:
    one, two, three = (
        weights_of(finish(tmp_path / rule, **LORA, lora_average=rule))["blocks.0.merge.weight"]
        for rule in ("frozen-a", "factors", "products")
    )
    assert not torch.allclose(one, two, atol=1e-5)
    assert not torch.allclose(two, three, atol=1e-7)


def test_a_secure_sum_gives_the_plain_result(tmp_path: Path, finish: Finish) -> None:
    plain = weights_of(finish(tmp_path / "plain", **LORA))
    summed = weights_of(
        finish(tmp_path / "summed", **LORA, protect="secure-sum", protect_settings={"batch_seed": "run"})
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(summed[name], tensor, rtol=1e-3, atol=1e-3)
    small, large = (
        rounds_of(finish(tmp_path / train, train=train, rounds=1, protect="secure-sum"))[0]["bytes_up"]
        for train in ("head.*", "all")
    )
    assert small < 0.1 * large


def test_products_under_a_secure_sum_are_refused_in_one_line(tmp_path: Path, finish: Finish) -> None:
    with pytest.raises(UsageError, match="needs each client's factors") as error:
        finish(tmp_path, **LORA, lora_average="products", protect="secure-sum")
    assert "\n" not in str(error.value)


def test_dp_sgd_trains_the_factors(tmp_path: Path, finish: Finish) -> None:
    folder = finish(tmp_path, **LORA, protect="dp-samples", protect_settings={"epsilon": 50.0})
    start = build_model("mini-vit", InputSpec((3, 8, 8), 3), seed=0).state_dict()
    found = weights_of(folder)
    assert not torch.equal(found["blocks.0.merge.weight"], start["blocks.0.merge.weight"])
    assert torch.equal(found["blocks.0.merge.bias"], start["blocks.0.merge.bias"])


def test_the_saved_model_is_a_plain_one_that_predicts(
    tmp_path: Path, finish: Finish, make_tiny_data: Callable[..., DataSet]
) -> None:
    folder = finish(tmp_path, **LORA, lr=0.2, rounds=4)
    model, data = load_model(folder), make_tiny_data()
    plain = build_model("mini-vit", InputSpec((3, 8, 8), 3), seed=0)
    assert list(model.network.state_dict()) == list(plain.state_dict())
    rows = data.domain_of == data.domains.index("held")
    images = torch.from_numpy(data.inputs[rows]).permute(0, 3, 1, 2)
    found = model.outputs(images).argmax(dim=1).numpy()
    accuracy = json.loads(RunFolder(folder).result.read_text())["metrics"]["target"]["accuracy"]
    assert float((found == data.targets[rows]).mean()) == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "block.3.*"}, r"no parameter of the model matches 'block\.3\.\*'"),
        ({"train": "lora", "model": "lenet"}, "'lenet' has none"),
        ({"train": "lora", "lora_rank": 0}, "--lora-rank must be at least 1"),
        ({"train": "lora", "lora_average": "sum"}, "lora average"),
    ],
)
def test_impossible_requests_get_one_line(
    tmp_path: Path, finish: Finish, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        finish(tmp_path, **options)
