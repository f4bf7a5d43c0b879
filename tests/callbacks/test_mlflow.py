"""MLflow's own stores: a SQLite database, and a server on loopback where the whole of MLflow is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback_servers import free_port
from tracked_runs import StopInRound, images, recorded_points, train

from unseen.callbacks.base import Callback, RunEnd, StopTrainingError, make_callbacks
from unseen.callbacks.mlflow import MLflow
from unseen.callbacks.tracking import Tracking, forget, read_trails, replay
from unseen.errors import UnseenError, UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run
from unseen.serving import load_model

pytest.importorskip("mlflow")
pytest.importorskip("alembic")
ODD = ("a (old)/x", "..", "50 % é")
"""Names of domains that MLflow does not allow in metrics, or only partly."""


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, note: str) -> None:
        self.notes.append(note)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database, which takes MLflow seconds to create."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def in_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(store))
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was tracked while it trained."""
    out = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(store)
        patch.setenv("MLFLOW_TRACKING_URI", str(store))
        train(out, *make_callbacks(["mlflow"], out))
    return out


def client(address: str = "") -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(address or f"sqlite:///{Path.cwd() / 'mlflow.db'}")


def tracked_id(out: Path) -> str:
    (trail,) = read_trails(RunFolder(out).tracking).values()
    return trail.id


def points(run_id: str, address: str = "") -> dict[tuple[str, int], float]:
    """Every point that the store has of a run; each step may be there once."""
    asked = client(address)
    found: dict[tuple[str, int], float] = {}
    for key in asked.get_run(run_id).data.metrics:
        for metric in asked.get_metric_history(run_id, key):
            assert (key, metric.step) not in found, f"{key} has two values at step {metric.step}"
            found[key, metric.step] = metric.value
    return found


def send_again(out: Path) -> str:
    """Replay a run into a new tracked run; return its id."""
    forget(out, "mlflow")
    run = read_run(out)
    replay(run, *make_callbacks(["mlflow"], out), RunEnd(out, run.result or {}))
    return tracked_id(out)


def test_the_store_has_parameters_tags_metrics_and_files(finished: Path) -> None:
    run = client().get_run(tracked_id(finished))
    assert run.info.run_name == "fedavg/c/0" and run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "3" and "data_root" not in run.data.params
    assert {"method", "held_out", "unseen.version", "unseen.run_id"} <= run.data.tags.keys()
    found = points(run.info.run_id)
    assert {key: found[key] for key in recorded_points(finished)} == recorded_points(finished)
    listed = {each.path for each in client().list_artifacts(run.info.run_id)}
    assert {"report.html", "config.toml", "records.jsonl", "result.json", "figures"} <= listed
    assert client().list_artifacts(run.info.run_id, "figures")


def test_the_logged_model_predicts_as_the_model_of_the_run(finished: Path) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    import mlflow
    import torch

    mlflow.set_tracking_uri(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    loaded = pyfunc.load_model(f"runs:/{tracked_id(finished)}/model")
    pixels = np.asarray(images().inputs[:5])
    expected = load_model(finished).outputs(torch.from_numpy(pixels).permute(0, 3, 1, 2)).softmax(1).numpy()
    np.testing.assert_allclose(loaded.predict(pixels), expected, rtol=1e-5)


def test_afterwards_gives_the_same_as_live(finished: Path) -> None:
    live = tracked_id(finished)
    later = send_again(finished)
    assert later != live
    assert points(later) == points(live)
    runs = [client().get_run(each) for each in (live, later)]
    assert runs[0].data.params == runs[1].data.params
    assert runs[0].info.start_time == runs[1].info.start_time
    assert runs[0].info.end_time == runs[1].info.end_time


def test_a_resumed_run_continues_the_same_tracked_run_without_repeated_points(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(StopTrainingError):
        train(out, *make_callbacks(["mlflow"], out), StopInRound(2))
    first = tracked_id(out)
    assert client().get_run(first).info.status == "RUNNING"
    train(out, *make_callbacks(["mlflow"], out), resume=True)
    assert tracked_id(out) == first
    assert points(first).keys() >= recorded_points(out).keys()
    assert client().get_run(first).info.status == "FINISHED"


def test_a_tracked_run_that_was_deleted_is_made_again(finished: Path) -> None:
    gone = send_again(finished)
    client().delete_run(gone)
    run = read_run(finished)
    replay(run, *make_callbacks(["mlflow"], finished), RunEnd(finished, run.result or {}))
    assert tracked_id(finished) != gone
    assert points(tracked_id(finished)).keys() >= recorded_points(finished).keys()


def test_names_that_mlflow_does_not_allow_are_written_differently_and_stay_distinct(tmp_path: Path) -> None:
    out, notes = tmp_path / "run", Notes()
    train(out, *make_callbacks(["mlflow"], out), notes, data=images(ODD))
    assert not [note for note in notes.notes if "dropped" in note]
    assert len(points(tracked_id(out)).keys()) >= len(recorded_points(out))


def test_a_server_that_does_not_answer_is_dropped_and_the_weights_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out, notes = tmp_path / "run", Notes()
    train(tmp_path / "plain")
    train(out, *make_callbacks(["mlflow"], out), notes)
    (note,) = [note for note in notes.notes if "dropped" in note]
    assert "\n" not in note and "secret" not in note and f"unseen track {out} --to mlflow" in note
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()


def test_a_server_elsewhere_is_refused_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_OFFLINE", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    with pytest.raises(UsageError, match=r"MLflow at https://mlflow\.example\.org"):
        make_callbacks(["mlflow"], tmp_path)


def test_a_damaged_database_is_one_line(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.db").write_text("not a database")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path))
    with pytest.raises(UnseenError, match="mlflow sqlite:") as refused:
        replay(read_run(finished), Tracking(MLflow(finished), finished), None)
    assert "\n" not in str(refused.value)


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"unseen\[mlflow\]"):
        make_callbacks(["mlflow"], tmp_path)


def test_a_real_server_gets_the_same_as_a_database(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    out = tmp_path / "run"
    with pytest.raises(StopTrainingError):
        train(out, *make_callbacks(["mlflow"], out), StopInRound(2))
    train(out, *make_callbacks(["mlflow"], out), resume=True)
    live = tracked_id(out)
    later = send_again(out)
    there = points(later, server)
    assert {
        key: value for key, value in there.items() if not key[0].startswith("result/")
    } == recorded_points(out)
    assert points(live, server).keys() == there.keys()
    listed = {each.path for each in client(server).list_artifacts(live)}
    assert {"report.html", "config.toml", "records.jsonl", "result.json", "figures"} <= listed
    experiment = client(server).get_experiment_by_name("unseen").experiment_id
    models = client(server).search_logged_models([experiment])
    assert {each.source_run_id for each in models} == {live, later}
    assert {each.status.name for each in models} == {"READY"}
