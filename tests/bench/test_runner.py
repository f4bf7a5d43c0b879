"""Real small benches: nothing is done twice, a dead worker costs one job, and what is stopped goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace

import pytest

from unseen.bench.bench_files import markdown_file
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_summary import summarize_bench
from unseen.bench.results import load_results, read_results, write_results
from unseen.bench.runner import bench_state, run_bench
from unseen.bench.workers import BenchCallback
from unseen.checksums import CHECKSUMS
from unseen.config import RunConfig
from unseen.errors import UnseenError
from unseen.report import write_report
from unseen.runner.run import run
from unseen.runs.folder import RunFolder


class Witness(BenchCallback):
    """Writes down what it hears."""

    def __init__(self):
        self.begun, self.done, self.reasons, self.rounds = [], [], {}, {}

    def on_job_start(self, job):
        self.begun.append(job.name)

    def on_job_progress(self, job, progress):
        self.rounds.setdefault(job.name, []).append(progress.round)

    def on_job_end(self, job):
        self.done.append(job.name)

    def on_job_error(self, job, reason):
        self.reasons[job.name] = reason


def test_a_bench_gives_every_cell_a_result(finished_bench):
    _, folder, outcome = finished_bench
    assert not outcome.failed and not outcome.missing
    cells = [(result.seed, result.held_out, result.label) for result in outcome.results]
    assert cells == [(s, d, m) for s in (0, 1) for d in ("75", "0") for m in ("fedavg", "ppdg")]
    for result in outcome.results:
        values = json.loads((folder / "jobs" / result.job / "result.json").read_text())
        assert values["held_out"] == [result.held_out] and values["seed"] == result.seed
        metrics = values["metrics"]
        assert result.accuracy == {
            "source-validation": metrics["target"]["accuracy"],
            "last": metrics["target_last"]["accuracy"],
            "oracle": metrics["target_oracle"]["accuracy"],
        }
        assert result.in_domain == metrics["in_domain"]["accuracy"]
        assert len(result.curve) == 2 and result.curve[-1] == result.accuracy["last"]
        assert result.bytes_up == values["bytes_up"] and result.metric == "accuracy"


def test_results_follow_from_the_records_alone(finished_bench, tmp_path):
    _, folder, outcome = finished_bench
    assert load_results(folder) == outcome.results
    write_results(tmp_path / "results.jsonl", outcome.results)
    assert read_results(tmp_path / "results.jsonl") == outcome.results


def test_what_a_method_costs_in_bytes_and_waiting_stands_beside_its_accuracy(make_table_grid, tmp_path):
    grid = make_table_grid(methods={"fedavg": {}, "cwt": {}, "deepall": {}}, rounds=3)
    results = {one.label: one for one in run_bench(grid, BenchFolder(tmp_path / "b"), workers=1).results}
    assert {label: (one.transfers, one.idle) for label, one in results.items()} == {
        "fedavg": (3, 0.0),
        "cwt": (6, 0.5),  # two clients, one after another
        "deepall": (0, None),
    }
    assert results["fedavg"].bytes_up == results["cwt"].bytes_up > 0
    text = markdown_file(summarize_bench(grid, list(results.values())))
    (cost,) = (part for part in text.split("\n## ") if part.startswith("In-domain performance and cost"))
    cells = [line.strip("| ").split(" | ") for line in cost.splitlines() if line.startswith("|")]
    rows = {line[0]: line[-3:] for line in cells}
    assert rows["method"] == ["sent to clients", "transfers in turn", "clients idle"]
    assert rows["FedAvg"][1:] == ["3", "0%"] and rows["CWT"] == [rows["FedAvg"][0], "6", "50%"]
    assert rows["DeepAll"] == ["–", "0", "–"]


def test_kept_lines_stand_for_jobs_whose_folders_are_gone(finished_bench, tmp_path):
    grid, _, outcome = finished_bench
    place, witness = BenchFolder(tmp_path / "kept"), Witness()
    write_results(place.results, outcome.results[1:])
    state = bench_state(grid, place)
    assert state.results == outcome.results[1:]
    assert [job.id for job in state.missing] == [outcome.results[0].job]
    again = run_bench(grid, place, workers=1, callback=witness)
    assert witness.begun == [state.missing[0].name]
    assert [replace(one, seconds=0.0) for one in again.results] == [
        replace(one, seconds=0.0) for one in outcome.results
    ]
    renamed = replace(grid, methods={"other name": grid.methods["ppdg"] | {"method": "ppdg"}})
    assert {line.label for line in bench_state(renamed, place).results} == {"other name"}
    with_folds = replace(grid, selection="lodo")
    (own,) = bench_state(with_folds, place).results
    assert own.job == outcome.results[0].job, "the lines lack that rule, so their jobs must be run"


def test_numbers_that_are_not_defined_survive(finished_bench, tmp_path):
    result = finished_bench[2].results[0]
    odd = replace(result, accuracy={"last": float("nan")}, curve=[0.5, float("nan")])
    write_results(tmp_path / "results.jsonl", [odd])
    assert "NaN" not in (tmp_path / "results.jsonl").read_text()
    assert repr(read_results(tmp_path / "results.jsonl")) == repr([odd])
    (tmp_path / CHECKSUMS).unlink()
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(UnseenError, match="no results of a bench"):
        read_results(tmp_path / "results.jsonl")


def test_a_job_is_an_ordinary_run(finished_bench, tmp_path):
    """The third job of a worker that had others before ends with the weights of a run of its own."""
    _, folder, outcome = finished_bench
    there = RunFolder(folder / "jobs" / outcome.results[2].job)
    alone = run(RunConfig.load(there.config), out=tmp_path / "alone")
    assert (alone.folder / "model.safetensors").read_bytes() == there.model.read_bytes()
    assert not there.checkpoint.parent.exists() and not there.report.exists()
    write_report(there.path)
    assert there.report.exists()


def test_finished_jobs_are_never_repeated(finished_bench):
    grid, folder, outcome = finished_bench
    witness = Witness()
    again = run_bench(grid, BenchFolder(folder), workers=1, callback=witness)
    assert witness.begun == [] and again.results == outcome.results
    smaller = replace(grid, methods={"other name": {"method": "ppdg"}}, seeds=(1,))
    found = bench_state(smaller, BenchFolder(folder))
    assert not found.missing and [result.label for result in found.results] == ["other name"] * 2


def change_config(path, old, new):
    """Change a configuration as a person would who means it: without the line of its checksum."""
    *lines, checksum = path.read_text().splitlines(keepends=True)
    assert checksum.startswith("#")
    path.write_text("".join(lines).replace(old, new))


def test_what_a_protection_finds_out_makes_no_other_job(make_table_grid, tmp_path):
    """A run writes down the noise that its epsilon needs; the grid leaves it open."""
    noisy = {"protect": "dp-clients", "protect_settings": {"epsilon": 8.0, "noise_seed": "run"}}
    grid, place = make_table_grid(methods={"fedavg": noisy}), BenchFolder(tmp_path / "bench")
    (result,) = run_bench(grid, place, workers=1).results
    config = RunFolder(place.work / result.job).config
    assert RunConfig.load(config).protect_settings["noise"] > 0
    change_config(config, "epsilon = 8.0", "epsilon = 9.0")
    with pytest.raises(UnseenError, match=r"9\.0.*, not .*8\.0"):
        bench_state(grid, place)


def test_a_precision_that_the_run_chooses_makes_no_other_job(make_table_grid, tmp_path):
    grid, place = make_table_grid(methods={"fedavg": {"precision": "auto"}}), BenchFolder(tmp_path / "bench")
    (result,) = run_bench(grid, place, workers=1).results
    config = RunFolder(place.work / result.job).config
    assert RunConfig.load(config).precision == "float32"
    assert [each.job for each in bench_state(grid, place).results] == [result.job]


def test_two_benches_do_not_share_a_folder_at_a_time(make_table_grid, tmp_path):
    place = BenchFolder(tmp_path / "bench")
    with place.locked(), pytest.raises(UnseenError, match=r"working in .*bench;.* another --out"):
        run_bench(make_table_grid(), place, workers=1)


def test_two_benches_do_not_share_job_folders_at_a_time(make_table_grid, tmp_path):
    first, second = (BenchFolder(tmp_path / name, tmp_path / "shared") for name in ("one", "two"))
    with first.locked(), pytest.raises(UnseenError, match=r"working in .*shared;.* another --work"):
        run_bench(make_table_grid(), second, workers=1)


def test_a_failed_job_is_shown_kept_and_retried_on_request(make_table_grid, tmp_path):
    """The data's size makes a batch impossible; then a traceback: both are the job's own affair."""
    methods = {"fedavg": {}, "too large": {"method": "fedavg", "batch_size": 100_000}}
    grid, place, witness = make_table_grid(methods=methods), BenchFolder(tmp_path / "bench"), Witness()
    outcome = run_bench(grid, place, workers=1, callback=witness)
    assert witness.done == ["fedavg west seed 0"] and [r.label for r in outcome.results] == ["fedavg"]
    ((job, reason),) = outcome.failed
    assert job.label == "too large" and "100000" in reason and witness.reasons == {job.name: reason}
    assert json.loads((place.work / job.id / "failure.json").read_text())["reason"] == reason

    silent = Witness()
    assert run_bench(grid, place, workers=1, callback=silent).failed == outcome.failed
    assert silent.begun == []
    assert run_bench(grid, place, workers=1, callback=silent, retry_failed=True).failed == outcome.failed
    assert silent.begun == [job.name]


class KillsWorkers(Witness):
    """Kills every worker process when a job has finished its second round."""

    def on_job_progress(self, job, progress):
        super().on_job_progress(job, progress)
        if job.label == "ppdg" and progress.round == 2:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)


def test_a_killed_worker_costs_one_job_which_goes_on_from_its_checkpoint(make_table_grid, tmp_path):
    methods = {"fedavg": {}, "ppdg": {}, "fedprox": {}}
    grid, place, killer = (
        make_table_grid(rounds=30, methods=methods),
        BenchFolder(tmp_path / "b"),
        KillsWorkers(),
    )
    outcome = run_bench(grid, place, workers=1, callback=killer)
    assert killer.done == ["fedavg west seed 0", "fedprox west seed 0"], "the bench went on with a new worker"
    ((job, reason),) = outcome.failed
    assert job.label == "ppdg" and "SIGKILL" in reason

    witness = Witness()
    again = run_bench(grid, place, workers=1, callback=witness, retry_failed=True)
    assert not again.failed and len(again.results) == 3
    assert witness.rounds[job.name][0] >= 1, "rounds before the kill are not run again"
    whole = run(RunConfig.load(RunFolder(place.work / job.id).config), out=tmp_path / "whole")
    model = (place.work / job.id / "model.safetensors").read_bytes()
    assert model == (whole.folder / "model.safetensors").read_bytes()


def test_a_worker_killed_before_its_run_began_leaves_nothing_in_the_way(make_table_grid, tmp_path):
    grid, place = make_table_grid(methods={"fedavg": {}}), BenchFolder(tmp_path / "b")
    folder = grid.job("fedavg", "west", 0).folder(place.work)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "lock").touch()
    assert not run_bench(grid, place, workers=1).failed


def test_a_damaged_job_is_named(make_grid, tmp_path, finished_bench):
    _, folder, outcome = finished_bench
    shutil.copytree(folder, tmp_path / "copy")
    victim = tmp_path / "copy" / "jobs" / outcome.results[0].job
    (victim / "records.jsonl").write_text("{")
    with pytest.raises(UnseenError, match=outcome.results[0].job):
        load_results(tmp_path / "copy")
    shutil.copytree(folder / "jobs" / victim.name, victim, dirs_exist_ok=True)
    config = victim / "config.toml"
    whole = config.read_text()
    config.write_text(whole.replace("momentum = 0.9", "momentum = 0.8"))
    with pytest.raises(UnseenError, match="was changed or damaged after it was written"):
        load_results(tmp_path / "copy")
    config.write_text(whole)
    change_config(config, "momentum = 0.9", "momentum = 0.8")
    with pytest.raises(UnseenError, match=r"momentum = 0\.8, not 0\.9"):
        load_results(tmp_path / "copy")
