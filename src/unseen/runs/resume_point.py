"""Where a run continues: its checkpoint, if the files of the folder agree on one."""

from __future__ import annotations

from unseen.errors import UnseenError, UsageError
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records


def find_checkpoint(folder: RunFolder, *, rounds: int) -> Checkpoint | None:
    """Read the checkpoint of a run; None before the end of its first round.

    Records of later rounds without a checkpoint are never started over: it was deleted, or not copied.

    rounds  number of rounds that the run has
    """
    if folder.checkpoint.exists():
        found = Checkpoint.load(folder.checkpoint)
        if found.round > rounds:
            raise UnseenError(
                f"{folder.checkpoint} says that round {found.round} is done, but the run has {rounds}: "
                "restore it from a backup, or start again with another --out"
            )
        return found
    if not folder.records.exists():
        return None
    recorded = [record.get("round") for record in read_records(folder.records) if record["event"] == "round"]
    done = max((number for number in recorded if isinstance(number, int)), default=0)
    if folder.result.exists():
        raise UnseenError(
            f"{folder.path} contains a finished run without its checkpoint ({folder.checkpoint.name}), as "
            "a bench keeps it: there is nothing to resume; to train again, choose another --out"
        )
    if done > 1:
        raise UnseenError(
            f"{folder.path} has records of {done} rounds but no checkpoint: restore {folder.checkpoint} "
            "from a backup, or start again with another --out; nothing was changed"
        )
    return None


def require_layout(found: Checkpoint, layout: str, *, size: int, folder: RunFolder) -> None:
    """Refuse a checkpoint whose weights are in another order, or of another length, than the model's."""
    if found.layout != layout:
        raise UsageError(
            f"{folder.path} was started by a version of Unseen that orders this model's weights "
            "differently: choose another --out"
        )
    for name, state in (("weights", found.weights), ("selected", found.selected)):
        if tuple(state.shape) != (size,):
            raise UnseenError(
                f"{folder.checkpoint}: {name} has the shape {tuple(state.shape)}, but the model has {size} "
                "values: restore the file from a backup, or start again with another --out"
            )
