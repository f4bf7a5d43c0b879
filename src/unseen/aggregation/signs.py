"""Where the clients agree on the direction of a parameter: sign agreement, coordinate by coordinate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unseen.aggregation.blocks import block_slices, block_width


class SignAgreement(NamedTuple):
    """What the signs of w_k - w say of every coordinate; coordinates in neither mask are in conflict.

    agree    all clients moved it the same way
    unmoved  no client moved it (a frozen parameter, a dead unit)
    """

    agree: Tensor
    unmoved: Tensor

    @property
    def conflict(self) -> Tensor:
        """Coordinates that some client moved and on which not all agree."""
        return ~(self.agree | self.unmoved)

    @property
    def fraction(self) -> float:
        """Agreeing share of the coordinates that were moved at all; 1 if none was."""
        moved = len(self.agree) - int(self.unmoved.sum())
        return int(self.agree.sum()) / moved if moved else 1.0


def sign_agreement(
    rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None
) -> SignAgreement:
    """Compare the signs of all clients' moves over a part of the state, in one blocked pass.

    A client that left a coordinate where it was disagrees with one that moved it. No difference is formed:
    all signs are positive where even the smallest value lies above the reference.
    """
    size = extent.stop - extent.start
    agree, unmoved = torch.empty(size, dtype=torch.bool), torch.empty(size, dtype=torch.bool)
    for columns in block_slices(extent, width or block_width(len(rows))):
        smallest, largest = rows[:, columns].amin(dim=0), rows[:, columns].amax(dim=0)
        before = reference[columns]
        place = slice(columns.start - extent.start, columns.stop - extent.start)
        torch.logical_or(smallest > before, largest < before, out=agree[place])
        torch.logical_and(smallest == before, largest == before, out=unmoved[place])
    return SignAgreement(agree, unmoved)
