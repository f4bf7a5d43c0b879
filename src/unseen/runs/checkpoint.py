"""What must survive a crash: the checkpoint, written atomically after every round, and client state.

Client state is what a client keeps from round to round. Every change is a new file named after the round, and
the checkpoint names the version that counts, so a crash between the two costs nothing. Clients without state
cost nothing either.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.errors import UnseenError
from unseen.fileio import write_atomically

_SERVER = "server/"
_PROTECTION = "protection/"
_AVERAGE = "average/"


@dataclass
class Checkpoint:
    """A run after some round.

    weights        the global state
    selected       what was evaluated (the global state, or its average) in the round that selection prefers
    server         the method's state on the server
    protection     the protection's state on the server
    average        the state of the average of global weights over rounds
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
    average: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replace the checkpoint at `path`."""
        tensors = {"weights": self.weights, "selected": self.selected}
        tensors |= {_SERVER + key: value for key, value in self.server.items()}
        tensors |= {_PROTECTION + key: value for key, value in self.protection.items()}
        tensors |= {_AVERAGE + key: value for key, value in self.average.items()}
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
        server, protection, average = (
            {key.removeprefix(part): value for key, value in tensors.items() if key.startswith(part)}
            for part in (_SERVER, _PROTECTION, _AVERAGE)
        )
        return cls(
            weights=weights, selected=selected, server=server, protection=protection, average=average, **facts
        )


T = TypeVar("T")


def protection_key(client: str) -> str:
    """Return the key of a client's state for the protection of its updates."""
    return f"{client}/protection"


class ClientState(MutableMapping[str, Tensor]):
    """A client's named tensors, with a flag that is set by changes."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self.changed = False

    def __getitem__(self, key: str) -> Tensor:
        return self._tensors[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self._tensors[key] = value
        self.changed = True

    def __delitem__(self, key: str) -> None:
        del self._tensors[key]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class StateStore:
    """The state of all clients; `versions` maps a client to the round of its newest file."""

    def __init__(self, folder: Path, versions: dict[str, int] | None = None) -> None:
        self.folder = folder
        self.versions = dict(versions or {})

    def read(self, client: str) -> ClientState:
        """Load a client's state; empty if it has none."""
        if client not in self.versions:
            return ClientState({})
        return ClientState(load_file(self.path(client, self.versions[client])))

    def write(self, client: str, state: ClientState, *, round: int) -> None:
        """Write a client's state if it changed in this round."""
        if not state.changed:
            return
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        write_atomically(self.path(client, round), lambda path: save_file(tensors, path))
        self.versions[client] = round

    def with_state(self, client: str, *, round: int, do: Callable[[ClientState], T]) -> T:
        """Call `do` with a client's state and keep what it changes."""
        state = self.read(client)
        result = do(state)
        self.write(client, state, round=round)
        return result

    @contextmanager
    def open_states(
        self, client: str, *, round: int, protected: bool
    ) -> Iterator[tuple[ClientState, ClientState | None]]:
        """Yield a client's state for the method and, if `protected`, that for the protection; keep changes.

        Nothing is kept if the block raises.
        """
        state, key = self.read(client), protection_key(client)
        of_protection = self.read(key) if protected else None
        yield state, of_protection
        if of_protection is not None:
            self.write(key, of_protection, round=round)
        self.write(client, state, round=round)

    def forget_old(self) -> None:
        """Delete the files that no client's current version needs."""
        if not self.folder.is_dir():
            return
        current = {self.path(client, round).name for client, round in self.versions.items()}
        for path in self.folder.iterdir():
            if path.name not in current:
                path.unlink(missing_ok=True)

    def forget_old_of(self, client: str) -> None:
        """Delete all of one client's files but that of its current version."""
        current = self.path(client, self.versions[client])
        for path in self.folder.glob(f"{glob.escape(quote(client, safe=''))}@*.safetensors"):
            if path != current:
                path.unlink(missing_ok=True)

    def path(self, client: str, round: int) -> Path:
        """Return the file of one version of a client's state."""
        return self.folder / f"{quote(client, safe='')}@{round}.safetensors"
