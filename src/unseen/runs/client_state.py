"""Client state on disk: what a client keeps from round to round, one file per version.

Every change is a new file named after the round, and the checkpoint names the version that counts, so a
crash between the two costs nothing. Clients without state cost nothing either.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.fileio import write_atomically

T = TypeVar("T")


def protection_key(client: str) -> str:
    """Return the key of a client's state for the protection of its updates."""
    return f"{client}/protection"


class ClientState(MutableMapping[str, Tensor]):
    """A client's named tensors; knows whether it was changed."""

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
