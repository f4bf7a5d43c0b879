"""MLflow: parameters, metrics, artifacts and the model of a run, in a local store or on a server.

`MLFLOW_TRACKING_URI` names the store: an address, or a folder, which gets a SQLite database; without it
MLflow uses `mlflow.db` in the current folder. Needs `pip install 'unseen[mlflow]'`.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unseen import __version__
from unseen.callbacks.base import CALLBACKS
from unseen.callbacks.destinations import is_remote, require_reachable, without_secrets
from unseen.callbacks.tracked_values import TrackedRun
from unseen.callbacks.tracking import Ending, Moment, Tracker, Tracking, Trail
from unseen.errors import UsageError
from unseen.fileio import write_text

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

URI, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Variables that MLflow reads, unless the user has set them: it sends nothing about its use, and a server
that is gone does not stop the training for minutes."""
_METRICS, _PARAMETERS, _LONGEST = 1000, 100, 6000
"""What MLflow takes in one request, and the length of a parameter."""


_TRAINING_PAGE = {"mlflow.experimentKind": "custom_model_development"}
"""Makes MLflow show its pages for training, not those for chats with language models."""


class MLflow(Tracker):
    """Logs a run to MLflow."""

    name = "mlflow"

    def __init__(self, folder: Path) -> None:
        for variable, value in _DEFAULTS.items():
            os.environ.setdefault(variable, value)
        named = os.environ.get(URI, "")
        require_reachable("MLflow", named, instead=f"let {URI} name a folder or a server on this machine")
        try:
            import mlflow
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise UsageError("tracking with mlflow needs an extra: pip install 'unseen[mlflow]'") from error
        address = _store(named) if named else str(mlflow.get_tracking_uri())
        require_reachable("MLflow", address, instead=f"let {URI} name a folder or a server on this machine")
        self.place, self.remote = without_secrets(address), is_remote(address)
        self._make_client, self._address = MlflowClient, address
        self._client: MlflowClient | None = None
        self._run = self._experiment = ""

    def open(self, run: TrackedRun, trail: Trail) -> Trail:
        """Continue the tracked run, or create one with parameters and tags."""
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        with _quiet():
            self._client = client = self._make_client(self._address)
            if trail.id:
                try:
                    found = client.get_run(trail.id)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                        raise
                else:
                    if found.info.lifecycle_stage == "active":
                        self._run, self._experiment = trail.id, found.info.experiment_id
                        if not trail.finished:
                            client.update_run(self._run, status="RUNNING")
                        return trail
            self._experiment = self._find_experiment(client)
            created = client.create_run(
                self._experiment, start_time=round(run.started * 1000), tags=run.tags, run_name=run.name
            )
            self._run = created.info.run_id
            parameters = [Param(_key(name), value[:_LONGEST]) for name, value in run.parameters.items()]
            for start in range(0, len(parameters), _PARAMETERS):
                client.log_batch(self._run, params=parameters[start : start + _PARAMETERS])
        return Trail(self._run)

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        """Log all values of a record in one request."""
        from mlflow.entities import Metric

        time = round(moment.time * 1000)
        metrics = [Metric(_key(name), value, time, moment.round) for name, value in values.items()]
        with _quiet():
            for start in range(0, len(metrics), _METRICS):
                self._opened.log_batch(self._run, metrics=metrics[start : start + _METRICS])

    def finish(self, ending: Ending, moment: Moment) -> None:
        """Log the result, the files, the figures and the model; end the tracked run."""
        self.log(ending.values, moment)
        with _quiet(), tempfile.TemporaryDirectory() as temporary:
            for path in ending.files:
                self._opened.log_artifact(self._run, str(path))
            figures, model = Path(temporary, "figures"), Path(temporary, "model")
            figures.mkdir()
            for name, image in ending.figures().items():
                (figures / f"{name.replace('/', '-')}.png").write_bytes(image)
            self._opened.log_artifacts(self._run, str(figures), "figures")
            if ending.model.is_file():
                self._log_model(ending.model, model, moment)
            self._opened.set_terminated(self._run, "FINISHED", round(moment.time * 1000))

    def _log_model(self, weights: Path, folder: Path, moment: Moment) -> None:
        """Log the model as MLflow's own, which `mlflow.pyfunc.load_model` loads."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        write_text(folder / "requirements.txt", f"unseen[zoo]=={__version__}\n")
        logged = self._opened.create_logged_model(self._experiment, "model", source_run_id=self._run)
        loader = {"loader_module": "unseen.serving.mlflow_model", "data": weights.name}
        loader["python_version"] = platform.python_version()
        flavors = {"python_function": {**loader, "env": {"virtualenv": "python_env.yaml"}}}
        write_text(folder / "python_env.yaml", "dependencies:\n- -r requirements.txt\n")
        Model(run_id=self._run, flavors=flavors, model_id=logged.model_id).save(str(folder / "MLmodel"))
        self._opened.log_model_artifact(logged.model_id, str(weights))
        self._opened.log_model_artifacts(logged.model_id, str(folder))
        self._opened.finalize_logged_model(logged.model_id, "READY")
        self._opened.log_outputs(self._run, [LoggedModelOutput(logged.model_id, moment.round)])

    @property
    def _opened(self) -> MlflowClient:
        assert self._client is not None, "opened first"
        return self._client

    @staticmethod
    def _find_experiment(client: MlflowClient) -> str:
        """Find the experiment by its name, or create it."""
        name = os.environ.get(EXPERIMENT) or "unseen"
        found = client.get_experiment_by_name(name)
        return str(found.experiment_id if found else client.create_experiment(name, tags=_TRAINING_PAGE))


@CALLBACKS.register("mlflow")
def track_with_mlflow(folder: Path) -> Tracking:
    """Logs the run to MLflow: MLFLOW_TRACKING_URI names a server or a folder."""
    return Tracking(MLflow(folder), folder)


def _store(named: str) -> str:
    """Return the address of a store; a folder becomes the address of the SQLite database in it."""
    if "://" in named or named.startswith(("file:", "databricks", "uc:")):
        return named
    folder = Path(named).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _key(name: str) -> str:
    """Write a name with the characters that MLflow allows: others, and parts like `..`, as their code."""
    text = re.sub(r"[^\w./ -]", lambda found: f"_x{ord(found[0]):x}", name)
    return "/".join(part if part.strip(".") else f"_x{len(part)}" for part in text.split("/"))[:250]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's remarks on databases and addresses off the terminal."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
