"""The exchange of column sums before a run on tables, as a method: clients send sums and train nothing.

Because it has the form of a round, every engine carries it and a protection that serves sums serves it too:
under secure summation and encryption the server learns the sums over all clients and no client's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unseen.aggregation import Reduction, ServerWork
from unseen.data import DataSet
from unseen.data.dataset import Column
from unseen.data.tables.column_statistics import (
    Statistics,
    explain_impossible,
    from_vector,
    merge_statistics,
    sum_columns,
    to_vector,
    vector_length,
    without_small_groups,
)
from unseen.data.tables.encoding import align_columns
from unseen.data.transforms import Normalize
from unseen.engine import Experiment
from unseen.errors import UnseenError
from unseen.federation import Federation
from unseen.hparams import Settings
from unseen.methods import Method
from unseen.models import InputSpec, build_model
from unseen.privacy import Protection
from unseen.privacy.context import SAMPLES
from unseen.runner.start_record import TABLE_SUMS
from unseen.training import ClientWork, LocalTrainingConfig, Preprocessor, Update

CONSTANTS = "two constants in place of model weights"
CENTRES = "centres"
FIRST_PASS, SECOND_PASS = 1, 2
"""Rounds of the exchange: sums about zero, then about the means."""


class ColumnSums(Method[Settings]):
    """Sums over the columns of the clients' training rows.

    columns  of the table, with the levels of all sites
    exact    whether sums are sent as whole numbers, for a protection that adds them up
    min_group  values that fewer rows of a client have count as missing
    """

    name = "column-sums"
    title = "Column sums"
    summary = "sums over the columns of tables, before a run"
    sends = (CONSTANTS, SAMPLES, TABLE_SUMS)
    in_state = (CONSTANTS,)
    merges: ClassVar[Mapping[str, Reduction]] = {TABLE_SUMS: "sum"}
    beyond_losses = "it sends sums over the columns of its samples"

    def __init__(self, columns: Sequence[Column], *, exact: bool, min_group: int = 1) -> None:
        super().__init__(Settings())
        self.columns, self.exact, self.min_group = tuple(columns), exact, min_group

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the vector that a client sends."""
        dtype = torch.int64 if self.exact else torch.float64
        length = vector_length(self.columns, exact=self.exact)
        return {TABLE_SUMS: torch.empty(length, dtype=dtype, device="meta")}

    def client(self, work: ClientWork) -> Update:
        """Sum the columns of the training rows; targets too, if they are quantities."""
        batch = work.train.gather(torch.arange(len(work.train)))
        inputs, targets = batch.inputs.double().numpy(), batch.targets.double().numpy()
        if not work.train.task_type.standardizes_targets:
            targets = np.full(len(inputs), np.nan)
        values = without_small_groups(np.column_stack([inputs, targets]), self.columns, self.min_group)
        found = sum_columns(values, self.columns, about=self._centres(work.received))
        sent = torch.from_numpy(to_vector(found, self.columns, exact=self.exact))
        return replace(work.update(extras={TABLE_SUMS: sent}), loss=0.0)

    def _centres(self, received: Mapping[str, Tensor]) -> npt.NDArray[np.float64] | None:
        if CENTRES not in received:
            return None
        centres = received[CENTRES].double().numpy()
        if centres.shape != (len(self.columns) + 1,) or not np.isfinite(centres).all():
            raise UnseenError("the centres of the columns are not one finite number per column")
        return centres

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Explain why sums cannot be those of the client's rows."""
        return explain_impossible(self.read(update.extras), self.columns, rows=update.samples)

    def read(self, extras: Mapping[str, Tensor]) -> Statistics:
        """Read statistics of one client, or of all if a protection has added them up."""
        return from_vector(extras[TABLE_SUMS].numpy(), self.columns, exact=self.exact)

    def merge(self, extras: Sequence[Mapping[str, Tensor]], *, rows: int) -> Statistics:
        """Add up what clients sent; a sum over all clients is the only entry."""
        merged = merge_statistics([self.read(each) for each in extras])
        if reason := explain_impossible(merged, self.columns, rows=rows):
            raise UnseenError(f"the sums over all sites cannot be those of a table: {reason}")
        return merged

    def server(self, work: ServerWork) -> Tensor:
        """Keep the weights: nothing was trained."""
        return work.weights


def make_sums_experiment(
    data: DataSet,
    federation: Federation,
    protection: Protection[Any],
    *,
    columns: Sequence[Column],
    seed: int,
    min_group: int = 1,
) -> Experiment:
    """Build the exchange as an experiment, on a site's own rows or on the coordinator's placeholder.

    columns    of all sites together; the site's own are brought into their order and level numbers
    min_group  the smallest group of rows that the site allows to be summed
    """
    columns = tuple(columns)
    return Experiment(
        data=replace(data, inputs=align_columns(data, columns), columns=columns),
        federation=federation,
        method=ColumnSums(columns, exact=protection.seals, min_group=min_group),
        network=build_model("linear", InputSpec((1,), 1), seed=0),
        plan=LocalTrainingConfig(epochs=1, batch_size=1, lr=1.0, momentum=0.0, rounds=SECOND_PASS),
        prepare=Preprocessor(normalize=Normalize(), classes=len(data.classes)),
        seed=seed,
        protection=protection,
    )
