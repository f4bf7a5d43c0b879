"""One declaration per option: identities stay, both spellings are read, commands offer every field."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields

import click
import pytest
import typer

from unseen.bench.bench_job import BenchJob, job_config
from unseen.cli.main import app
from unseen.config import RunConfig, recorded_names
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.registry import REGISTRIES, find_registry

ROOT = typer.main.get_command(app)
TRAIN, BENCH = (ROOT.commands[name] for name in ("train", "bench"))
DIGITS = {"data": "rotated-digits", "hold_out": ("75",)}


def flags(command: click.Command, *, hidden: bool = False) -> set[str]:
    """The option names of a command, without those that help does not show."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {name for option in options if option.hidden is hidden for name in option.opts}


@pytest.mark.parametrize(
    ("values", "identity"),
    [
        (DIGITS, "b1eadd3a4b2c"),
        ({**DIGITS, "method": "csac", "settings": {"acquisition_epochs": 5}, "seed": 3}, "af2c4fb44777"),
        ({**DIGITS, "optimiser": "adam", "lr": 0.001, "momentum": 0.0}, "d523e3d92ac2"),
        ({**DIGITS, "protect": "secure-sum", "protect_settings": {"bits": 32}}, "23475ee5aba1"),
        ({**DIGITS, "validate_on": "60", "update_dtype": "float16", "workers": 4}, "0ad32e8dd0e1"),
    ],
)
def test_identities_are_those_of_the_version_before(values, identity):
    assert RunConfig.from_mapping(values).identity() == identity


def test_where_batch_order_comes_from_is_part_of_a_run_only_if_it_is_the_seed():
    """P3: old runs keep their identity and can be resumed; runs that can be repeated to the bit differ."""
    old, new, seeded = (
        RunConfig.from_mapping({**DIGITS, "protect": "secure-sum", "protect_settings": {"bits": 32, **more}})
        for more in ({}, {"batch_seed": "secret"}, {"batch_seed": "run"})
    )
    assert old.identity() == new.identity() != seeded.identity()
    assert not old.differences(new) and old.differences(seeded)


OLD_SETTINGS = {
    "fedadg": {
        **{"adversarial_weight": 0.15, "classification_weight": None, "warm_up_epochs": None},
        **{"adversarial_epochs": None, "generator_lr": 0.7, "discriminator_lr": 0.7},
        **{"reference": "generator", "one_hot": True, "projection": True, "projection_size": None},
        **{"noise_size": None, "generator_output": "relu", "generator_goal": "recognised"},
        **{"discriminator_loss": "equation-2", "label_smoothing": None},
    },
    "mdfl": {
        **{"strength": 1.0, "nu": 0.5, "divide_by_count": False, "temperature": 1.0, "momentum": 0.0},
        **{"features_from": "received", "mean_samples": None, "refresh_every": 1},
    },
}
"""Settings as runs recorded them before defaults changed and settings were added."""


@pytest.mark.parametrize(
    ("method", "named", "identity"),
    [
        ("fedadg", {"reading": "printed"}, "215b8beca22c"),
        ("mdfl", {"strength": 1.0, "start": 0.0}, "4f82fa146fdf"),
    ],
)
def test_old_defaults_are_named_settings_and_keep_their_identity(method, named, identity, tmp_path):
    """A run of the version before is resumed, and found by its job id, as what it was."""

    def configure(settings):
        return RunConfig.from_mapping({**DIGITS, "method": method, "settings": settings})

    old = configure(OLD_SETTINGS[method])
    same = configure(vars(make_method(method, named).settings))
    old.save(tmp_path / "config.toml")
    recorded = RunConfig.load_recorded(tmp_path / "config.toml")
    read_again = configure(vars(make_method(method, recorded.settings).settings))
    for config in (old, same, read_again):
        assert config.identity() == identity
        assert not config.differences(old) and not old.differences(config)
    now = configure(vars(make_method(method).settings))
    assert now.identity() != identity and now.differences(old)
    jobs = [BenchJob("x", "75", 0, "", job_config(vars(config))).id for config in (read_again, same, now)]
    bare = {**DIGITS, "method": method}
    assert jobs[0] == jobs[1] != jobs[2] == BenchJob("x", "75", 0, "", job_config(bare)).id


def test_every_field_but_the_data_declares_its_option():
    undeclared = [item.name for item in fields(RunConfig) if "option" not in item.metadata]
    assert undeclared == ["data"]
    for item in fields(RunConfig)[1:]:
        assert item.metadata["option"].help.endswith("."), item.name
        assert item.metadata["option"].registry in ("", *REGISTRIES), item.name


def test_train_offers_every_field_and_bench_those_that_all_jobs_share():
    declared = {
        item.metadata["option"].flag
        or "--" + (item.metadata["option"].spelling or item.name).replace("_", "-")
        for item in fields(RunConfig)[1:]
    }
    assert declared <= flags(TRAIN)
    assert {"--rounds", "--partition", "--protect-set", "--schedule", "--optimizer"} <= flags(BENCH)
    assert not {"--seed", "--method", "--engine"} & flags(BENCH), "the grid's own axes"


def test_help_shows_the_defaults_that_count():
    shown = {option.name: option.default for option in TRAIN.params if isinstance(option, click.Option)}
    for item in fields(RunConfig):
        if item.default not in (MISSING, None, ()):
            joined = item.metadata["option"].joined
            assert shown[item.name] == ([item.default] if joined else item.default), item.name


def test_the_older_spelling_is_hidden_and_accepted():
    for command in (TRAIN, BENCH):
        assert "--optimizer" in flags(command) and "--optimiser" in flags(command, hidden=True)
    for name in ("optimizer", "optimiser"):
        assert RunConfig.from_mapping({**DIGITS, name: "adam"}).optimiser == "adam"


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"unknown option 'optimise'\. Did you mean 'optimizer'"):
        recorded_names({"optimise": "adam"})
    with pytest.raises(UsageError, match=r"unknown option in \[common\] 'round'"):
        recorded_names({"round": 3}, kind="option in [common]")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimiser", "sdg", "unknown optimizer 'sdg'"),
        ("schedule", "cosin", "unknown schedule 'cosin'"),
        ("partition", "dirichle", "unknown partition 'dirichle'"),
        ("augment", "standart", "unknown augmentation 'standart'"),
        ("task", "classify", "unknown task 'classify'"),
        ("method", "fedag", "unknown method 'fedag'"),
        ("protect", "secure", "unknown protection 'secure'"),
        ("selection", "leave-one-domain-out", "unknown selection rule 'leave-one-domain-out'"),
        ("engine", "flwr", "unknown engine 'flwr'"),
        ("update_dtype", "float8", "unknown update dtype 'float8'"),
        ("table_statistics", "locl", "unknown table statistics 'locl'"),
    ],
)
def test_names_are_checked_in_one_place(name, value, message):
    with pytest.raises(UsageError, match=message):
        RunConfig.from_mapping({**DIGITS, name: value}).check_names()


def test_what_is_written_is_read_back_and_none_is_spelt_in_settings(tmp_path):
    config = RunConfig.from_mapping(
        {**DIGITS, "settings": {"warmup": None, "note": 'a "quoted" line'}, "protect_settings": {"bits": 32}}
    )
    config.save(tmp_path / "config.toml")
    written = tomllib.loads((tmp_path / "config.toml").read_text())
    assert written["settings"]["warmup"] == "none" and written["optimiser"] == "sgd"
    assert "image_size" not in written and "schedule_settings" not in written
    assert not config.differences(RunConfig.load(tmp_path / "config.toml"))


def test_every_registry_is_found_and_describes_its_entries():
    from unseen.cli.list_command import summarize

    for kind in REGISTRIES:
        registry = find_registry(kind)
        for name in registry:
            assert summarize(registry[name]).strip(), (kind, name)
    with pytest.raises(UsageError, match="unknown kind 'method'"):
        find_registry("method")
