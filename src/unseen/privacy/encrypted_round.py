"""The server's half of one encrypted round: from the clients' ciphertexts to the decrypted combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.aggregation import OperatedUpdates, SurgeryPlan, client_weights, normalised
from unseen.errors import UnseenError
from unseen.privacy import encrypted_gram, encrypted_sum
from unseen.privacy.asking import first_answer
from unseen.privacy.encrypted_gram import COEFFICIENTS, DECISIONS
from unseen.privacy.encrypted_sum import MEAN, factors
from unseen.privacy.encrypted_update import COUNTERS, MAGNITUDES, Division, ciphertexts_of, own_weight
from unseen.privacy.facts import Message, Opened, Received, ServerSide
from unseen.privacy.he.encrypted_server import EncryptedServer
from unseen.privacy.he.server_process import ServerProcess
from unseen.privacy.key_delivery import STEP
from unseen.privacy.numbers import SummedUpdates

DECIDE, OPEN = (torch.tensor([number]) for number in (4, 5))
"""Steps after those of delivering the key: decide on a Gram matrix, open a sum."""


class EncryptedRound:
    """Passes bytes between the clients and the process that computes on them."""

    def __init__(self, process: ServerProcess, side: ServerSide, received: Sequence[Received]) -> None:
        self.process, self.side, self.received = process, side, received
        self.division = Division.of(side.layout)
        self.clients = tuple(client for client, _ in received)
        self.samples = torch.tensor([update.samples for _, update in received], dtype=torch.float64)

    def merged(self) -> Opened:
        """Combine the updates as the method does, and have only the outcome decrypted."""
        for client, update in self.received:
            parts = ciphertexts_of(client, update.extras, self.division)
            self.process.run(EncryptedServer.take, client, parts)
        sizes = torch.stack([update.extras[MAGNITUDES] for _, update in self.received])
        plan, told = self.side.method.surgery, dict[str, Any]()
        equal = normalised(
            client_weights(self.samples, self.side.method.weighting if plan is None else "uniform")
        )
        shares = equal if plan is None else self._decided(plan, sizes[:, 0], told)
        both = [
            factors(self._by_client(share), self._by_client(size))
            for share, size in ((shares, sizes[:, 0]), (equal, sizes[:, 1]))
        ]
        ciphertexts = [
            ciphertext
            for rows, part in zip(self.division.rows, both, strict=True)
            for ciphertext in self.process.run(EncryptedServer.weighted_sum, rows, part.of_clients)
        ]
        self.process.run(EncryptedServer.forget)
        answer = self._asked({STEP: OPEN, **encrypted_sum.question(ciphertexts, *both)}, "sum")
        return self._opened(answer[MEAN], told)

    def _decided(self, plan: SurgeryPlan, sizes: Tensor, told: dict[str, Any]) -> Tensor:
        """Have a key holder turn encrypted inner products into coefficients; `told` gets its counts."""
        rows = len(self.division.rows[0])
        products = self.process.run(EncryptedServer.gram, rows)
        question = encrypted_gram.question(products, clients=self.clients, magnitudes=sizes, rows=rows)
        answer = self._asked({STEP: DECIDE, **question}, "Gram matrix")
        conflicts, steps = answer[DECISIONS].tolist()
        told |= {"conflicting_pairs": conflicts, plan.steps: steps}
        return answer[COEFFICIENTS]

    def _asked(self, message: Message, what: str) -> Message:
        found = first_answer(self.clients, message, self.side.ask)
        if found is None:
            raise UnseenError(
                f"round {self.side.round}: no client could decrypt the {what}; the faults in the records say "
                "why"
            )
        return found[1]

    def _by_client(self, values: Tensor) -> dict[str, Any]:
        return dict(zip(self.clients, values.tolist(), strict=True))

    def _opened(self, mean: Tensor, told: dict[str, Any]) -> Opened:
        """The decrypted mean as what the method's server half gets: one row."""
        side, division, updates = self.side, self.division, [update for _, update in self.received]
        parameters, _ = division.sizes
        state = side.weights.detach().cpu().clone()
        state[division.parameters] += mean[:parameters]
        state[division.statistics] += mean[parameters:-1]
        if division.counters.stop > division.counters.start:
            state[division.counters] = torch.stack([update.extras[COUNTERS] for update in updates]).amax(
                dim=0
            )
        common: dict[str, Any] = {
            "clients": self.clients,
            "rows": state[None],
            "samples": self.samples.sum()[None],
            "steps": torch.tensor([sum(update.steps for update in updates)], dtype=torch.float64),
            "extras": ({},),
            "layout": side.layout,
        }
        weight = sum(own_weight(update.samples, side.method) for update in updates)
        return Opened(
            updates=SummedUpdates(**common, uniform=side.method.weighting == "uniform")
            if side.method.surgery is None
            else OperatedUpdates(**common, told=told),
            loss=float(mean[-1]) * weight / float(self.samples.sum()),
            seen=sum(update.seen for update in updates),
        )
