"""What must survive a crash: the checkpoint, written atomically after every round, and client state.

Client state is what a client keeps from round to round. Every change is a new file named after the round, and
the checkpoint names the version that counts, so a crash between the two costs nothing. Clients without state
cost nothing either. Both are readable by their user only: the state of a protection contains secret keys.
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

from torch import Tensor

from unseen.errors import UnseenError
from unseen.fileio import sync_folder
from unseen.tensor_files import DamagedFileError, load_tensors, save_tensors
from unseen.typed_values import wrong_type

_SERVER = "server/"
_PROTECTION = "protection/"
_AVERAGE = "average/"
_FACTS = ("run_id", "round", "client_states", "records_bytes", "seconds", "layout", "records_sum")
"""Fields of a checkpoint that are written as JSON in the header of its file."""


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
    records_sum    checksum of that part of the record file; empty in checkpoints of older versions
    checked        whether the file it was read from had a checksum; not written
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
    records_sum: str = ""
    checked: bool = True

    def save(self, path: Path) -> None:
        """Replace the checkpoint at `path`."""
        tensors = {"weights": self.weights, "selected": self.selected}
        tensors |= {_SERVER + key: value for key, value in self.server.items()}
        tensors |= {_PROTECTION + key: value for key, value in self.protection.items()}
        tensors |= {_AVERAGE + key: value for key, value in self.average.items()}
        facts = {name: getattr(self, name) for name in _FACTS}
        save_tensors(path, tensors, {"checkpoint": json.dumps(facts)}, private=True)
        sync_folder(path.parent)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint; a damaged one, or one of a newer version, is refused."""
        refused = f"{path} is not a usable checkpoint"
        way_out = "restore it from a backup, or start again with another --out; the folder was left as it is"
        try:
            found = load_tensors(path)
            facts, tensors = json.loads(found.metadata["checkpoint"]), found.tensors
            weights, selected = tensors.pop("weights"), tensors.pop("selected")
            unknown = sorted(facts.keys() - set(_FACTS))
        except (DamagedFileError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise UnseenError(f"{refused} ({error}): {way_out}") from error
        if unknown:
            raise UnseenError(
                f"{path} was written by a newer version of Unseen (it has {', '.join(unknown)}): update "
                "Unseen, or start again with another --out"
            )
        missing = [name for name in ("run_id", "round") if name not in facts]
        below_zero = [
            name for name in ("round", "records_bytes") if name in facts and not _counts(facts[name])
        ]
        problem = wrong_type(cls, facts) or " and ".join(
            [f"{name} is missing" for name in missing] + [f"{name} = {facts[name]!r}" for name in below_zero]
        )
        if problem:
            raise UnseenError(f"{refused} ({problem}): {way_out}")
        server, protection, average = (
            {key.removeprefix(part): value for key, value in tensors.items() if key.startswith(part)}
            for part in (_SERVER, _PROTECTION, _AVERAGE)
        )
        facts |= {"server": server, "protection": protection, "average": average}
        return cls(weights=weights, selected=selected, checked=found.checked, **facts)


def _counts(value: object) -> bool:
    return isinstance(value, int) and value >= 0


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
        path = self.path(client, self.versions[client])
        try:
            return ClientState(load_tensors(path).tensors)
        except DamagedFileError as error:
            raise UnseenError(
                f"the state of client {client!r} in {path} cannot be used ({error}): restore the file from a "
                "backup, or start again with another --out"
            ) from error

    def write(self, client: str, state: ClientState, *, round: int) -> None:
        """Write a client's state if it changed in this round."""
        if not state.changed:
            return
        save_tensors(self.path(client, round), dict(state), private=True)
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
