"""Weights & Biases and trackio share `init`, `log` and `finish`: values, settings, figures of a run.

Both stay on this machine unless the user names a server: W&B writes RUN/wandb for `wandb sync`, trackio its
own folder for `trackio show`. Needs `pip install 'unseen[wandb]'` or `'unseen[trackio]'`.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from unseen.callbacks.base import CALLBACKS
from unseen.callbacks.destinations import is_remote, require_reachable, without_secrets
from unseen.callbacks.tracked_values import TrackedRun
from unseen.callbacks.tracking import Ending, Moment, Tracker, Tracking, Trail
from unseen.errors import UsageError

_OPEN: dict[str, Any] = {}
"""Runs that this process has open, by their ids; one that was interrupted is closed when it is resumed."""


class InitLogFinish(Tracker):
    """Tracks with a library that has `init`, `log` and `finish`; subclasses say what differs.

    defaults  variables that the library reads, unless the user has set them: nothing about its use is sent
    """

    defaults: ClassVar[Mapping[str, str]]
    project_variable: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        for variable, value in self.defaults.items():
            os.environ.setdefault(variable, value)
        self.folder = folder
        address = self.address()
        require_reachable(self.name, address, instead=self.instead)
        self.remote = is_remote(address)
        try:
            self.library: Any = importlib.import_module(self.name)
        except ImportError as error:
            raise UsageError(
                f"tracking with {self.name} needs an extra: pip install 'unseen[{self.name}]'"
            ) from error
        self.project = os.environ.get(self.project_variable) or "unseen"
        self.place = f"{without_secrets(address)} {self.project}"
        self._opened: Any = None
        self._last, self._id = 0, ""

    instead: ClassVar[str]

    def address(self) -> str:
        """Return the server that the user named, or the local folder."""
        raise NotImplementedError

    def holds(self, id: str) -> bool:
        """Check whether a tracked run from before is still there."""
        raise NotImplementedError

    def init(self, run: TrackedRun, id: str, *, new: bool) -> Any:
        """Open the tracked run of this id."""
        raise NotImplementedError

    def place_in_order(self, values: Mapping[str, Any], moment: Moment) -> tuple[dict[str, Any], int]:
        """Return what is logged, and its step."""
        raise NotImplementedError

    def open(self, run: TrackedRun, trail: Trail) -> Trail:
        """Continue the tracked run, or open a new one with parameters and tags."""
        new = not (trail.id and self.holds(trail.id))
        kept = Trail(f"{_plain(run.name)}-{secrets.token_hex(3)}") if new else trail
        if (left := _OPEN.pop(kept.id, None)) is not None:
            left.finish()
        self._opened = _OPEN[kept.id] = self.init(run, kept.id, new=new)
        self._id = kept.id
        self._last = max(kept.rounds.values(), default=0) * 2 + 1
        return kept

    def log(self, values: Mapping[str, Any], moment: Moment) -> None:
        """Log the values of a record as one row."""
        row, step = self.place_in_order(values, moment)
        self._opened.log(row, step=step)

    def finish(self, ending: Ending, moment: Moment) -> None:
        """Log the result and the figures."""
        from PIL import Image

        images = {name: Image.open(io.BytesIO(png)) for name, png in ending.figures().items()}
        self.log(
            {**ending.values, **{name: self.library.Image(each) for name, each in images.items()}}, moment
        )

    def close(self) -> None:
        """Write what is buffered."""
        _OPEN.pop(self._id, None)
        self._opened.finish()


class WandB(InitLogFinish):
    """Weights & Biases; offline unless WANDB_MODE or WANDB_BASE_URL says otherwise."""

    name = "wandb"
    defaults: ClassVar = {"WANDB_ERROR_REPORTING": "false"}
    project_variable = "WANDB_PROJECT"
    instead = "leave WANDB_MODE out or offline, and send the run later with `wandb sync`"

    @property
    def mode(self) -> str:
        """What `WANDB_MODE` says; online if only a server is named, else offline."""
        named = "online" if os.environ.get("WANDB_BASE_URL") else "offline"
        return os.environ.get("WANDB_MODE") or named

    def address(self) -> str:
        """Return the server's address, or the folder of offline runs."""
        if self.mode in ("offline", "disabled", "dryrun"):
            return self.mode
        return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"

    def holds(self, id: str) -> bool:
        """Look for the folder of an offline run; a server is asked when the run is opened."""
        return self.remote or any(self._parent.glob(f"wandb/*run-*-{id}*"))

    @property
    def _parent(self) -> Path:
        return Path(os.environ.get("WANDB_DIR") or self.folder)

    def init(self, run: TrackedRun, id: str, *, new: bool) -> Any:
        """Open a run without anything about this machine, its code or its output."""
        library = self.library
        settings = library.Settings(
            **{"console": "off", "silent": True, "disable_git": True, "disable_code": True, "host": "unseen"},
            **{"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True},
            **{"x_save_requirements": False, "init_timeout": 30.0},
        )
        self._parent.mkdir(parents=True, exist_ok=True)
        opened = library.init(
            **{"project": self.project, "name": run.name, "id": id, "group": run.group or None},
            **{"dir": str(self._parent), "mode": self.mode, "settings": settings, "reinit": "create_new"},
            resume=None if new or self.mode == "offline" else "allow",
            tags=[tag[:64] for key, tag in run.tags.items() if key in ("method", "data")],
            config={**run.parameters, **run.tags},
        )
        opened.define_metric("*", step_metric="round")
        return opened

    def place_in_order(self, values: Mapping[str, Any], moment: Moment) -> tuple[dict[str, Any], int]:
        """Number rows upwards, which W&B demands: two per round, and the result after the last."""
        after = self._last + 1 if moment.event == "result" else moment.round * 2
        self._last = after + (moment.event == "evaluation")
        return {**values, "round": moment.round}, self._last

    def finish(self, ending: Ending, moment: Moment) -> None:
        """Log the figures, and the result as the run's summary."""
        super().finish(ending, moment)
        self._opened.summary.update(dict(ending.values))


class Trackio(InitLogFinish):
    """trackio; in its local folder unless TRACKIO_SERVER_URL or TRACKIO_SPACE_ID says otherwise."""

    name = "trackio"
    defaults: ClassVar = {"HF_HUB_DISABLE_TELEMETRY": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
    project_variable = "TRACKIO_PROJECT"
    instead = "leave TRACKIO_SPACE_ID out, and let TRACKIO_SERVER_URL name a server on this machine"

    def address(self) -> str:
        """Return the address of the server or of the space; without either the local folder."""
        if space := os.environ.get("TRACKIO_SPACE_ID"):
            return f"https://huggingface.co/spaces/{space}"
        return os.environ.get("TRACKIO_SERVER_URL") or os.environ.get("TRACKIO_DIR") or "local"

    def holds(self, id: str) -> bool:
        """Look for the run in the local folder; a server is asked when the run is opened."""
        return "://" in self.address() or id in (run.name for run in self.library.Api().runs(self.project))

    def init(self, run: TrackedRun, id: str, *, new: bool) -> Any:
        """Open a run without anything about this machine; trackio finds it again by its name."""
        return self.library.init(
            self.project,
            **{"name": id, "group": run.group or None, "resume": "never" if new else "must"},
            **{"embed": False, "auto_log_gpu": False, "auto_log_cpu": False},
            config={**run.parameters, **run.tags, "name": run.name},
        )

    def place_in_order(self, values: Mapping[str, Any], moment: Moment) -> tuple[dict[str, Any], int]:
        """Use the round as the step."""
        return dict(values), moment.round

    def close(self) -> None:
        """Write what is buffered; the library would otherwise do it again when Python ends."""
        _OPEN.pop(self._id, None)
        self.library.finish()


@CALLBACKS.register("wandb")
def track_with_wandb(folder: Path) -> Tracking:
    """Logs the run to Weights & Biases, offline unless WANDB_MODE=online or WANDB_BASE_URL is set."""
    return Tracking(WandB(folder), folder)


@CALLBACKS.register("trackio")
def track_with_trackio(folder: Path) -> Tracking:
    """Logs the run to trackio, locally unless TRACKIO_SERVER_URL or TRACKIO_SPACE_ID is set."""
    return Tracking(Trackio(folder), folder)


def _plain(name: str) -> str:
    """Write a name with the characters that both libraries allow in identifiers."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"
