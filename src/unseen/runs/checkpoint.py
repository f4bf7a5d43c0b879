"""Everything that must survive a crash, written atomically after every round."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unseen.errors import UnseenError
from unseen.fileio import write_atomically

_SERVER = "server/"
_PROTECTION = "protection/"


@dataclass
class Checkpoint:
    """A run after some round.

    weights        the global state
    selected       the global state of the round that selection prefers so far
    server         the method's state on the server
    protection     the protection's state on the server
    client_states  which version of each client's state belongs to this round
    records_bytes  how much of the record file belongs to this round
    layout         digest of the layout that the states are in
    """

    run_id: str
    round: int
    weights: Tensor
    selected: Tensor
    server: dict[str, Tensor] = field(default_factory=dict)
    client_states: dict[str, int] = field(default_factory=dict)
    records_bytes: int = 0
    seconds: float = 0.0
    protection: dict[str, Tensor] = field(default_factory=dict)
    layout: str = ""

    def save(self, path: Path) -> None:
        """Replace the checkpoint at `path`."""
        tensors = {"weights": self.weights, "selected": self.selected}
        tensors |= {_SERVER + key: value for key, value in self.server.items()}
        tensors |= {_PROTECTION + key: value for key, value in self.protection.items()}
        facts = {
            "run_id": self.run_id,
            "round": self.round,
            "client_states": self.client_states,
            "records_bytes": self.records_bytes,
            "seconds": self.seconds,
            "layout": self.layout,
        }
        whole = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        write_atomically(path, lambda target: save_file(whole, target, {"checkpoint": json.dumps(facts)}))

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint."""
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads(file.metadata()["checkpoint"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, KeyError, TypeError, OSError) as error:
            raise UnseenError(f"{path} is not a usable checkpoint ({error}); start a new run") from error
        weights, selected = tensors.pop("weights"), tensors.pop("selected")
        server, protection = (
            {key.removeprefix(part): value for key, value in tensors.items() if key.startswith(part)}
            for part in (_SERVER, _PROTECTION)
        )
        return cls(weights=weights, selected=selected, server=server, protection=protection, **facts)
