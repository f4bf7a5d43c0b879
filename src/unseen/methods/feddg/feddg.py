"""FedDG (ELCFS): images get the low-frequency amplitudes of other clients' images, in an episodic step.

The spectra go through the server, which keeps a bank of them. See docs/methods/feddg.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import ServerWork, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods._shared import RunningMeans, add_to_bank, bank_key, read_bank, require_images
from unseen.methods.base import Method, Paper, register
from unseen.methods.feddg.meta_learning import episodic_losses
from unseen.methods.feddg.spectra import (
    SPECTRA,
    Partners,
    mix_amplitudes,
    own_spectra,
)
from unseen.models import blocked_maps
from unseen.training import ClientWork, LocalTrainingConfig, Update


@dataclass(frozen=True)
class FedDGSettings(Settings):
    """Settings of FedDG."""

    window: float = setting(
        0.1,
        "fraction of each side's frequencies, from 0, whose amplitudes are mixed; 0 = mean brightness only",
        search=Uniform(0.01, 0.3),
    )
    spectra: int | None = setting(100, "number of a client's images whose spectra it sends, once; none = all")
    inner_lr: float = setting(
        0.001,
        "learning rate of the trial step between meta-train and meta-test",
        search=LogUniform(0.0001, 0.1),
    )
    first_order: bool = setting(
        True,
        "treat the trial step's gradient as a constant, as the released code does; false: second derivatives",
    )
    mixing: bool = setting(True, "false: no spectra are sent, the meta-test is on the images as they are")
    episodic: bool = setting(True, "false: no trial step, mixed images are just additional ones")

    def __post_init__(self) -> None:
        if not 0 <= self.window <= 0.5:
            raise UsageError(
                f"setting 'window' of feddg must be in [0, 0.5], not {self.window}: 0.5 is all frequencies"
            )
        if self.spectra is not None and self.spectra < 1:
            raise UsageError(f"setting 'spectra' of feddg must be at least 1 or none, not {self.spectra}")
        if self.inner_lr <= 0:
            raise UsageError(
                f"setting 'inner_lr' of feddg must be above 0, not {self.inner_lr}: episodic=false is no step"
            )


@register
class FedDG(Method[FedDGSettings]):
    """Episodic learning in continuous frequency space, for classification and regression on images.

    Clients minimize L(x; w) + L(x'; w - inner_lr * grad L(x; w)), where x' is x with its low-frequency
    amplitudes moved towards another client's. Before a client has a partner (in its first round, or alone) it
    minimizes L(x; w). The paper's boundary-oriented part is for segmentation and left out.
    """

    name = "feddg"
    title = "FedDG"
    summary = "amplitude spectra of images exchanged between clients and mixed, with an episodic step"
    paper = Paper(
        title="FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in "
        "Continuous Frequency Space",
        authors="Liu, Chen, Qin, Dou, Heng",
        year=2021,
        venue="CVPR",
        url="https://arxiv.org/abs/2103.06030",
    )
    needs_individual_updates = True
    sends: tuple[str, ...] = ("model weights", "number of samples", SPECTRA)
    of_single_samples = (SPECTRA,)
    beyond_losses = "it sends spectra of its samples"
    fixed_weights = ""
    mixed_targets = True

    def __init__(self, settings: FedDGSettings) -> None:
        super().__init__(settings)
        if not settings.mixing:
            self.sends = Method.sends

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the bank; there is none before the first round."""
        return read_bank(state, SPECTRA)

    def client(self, work: ClientWork) -> Update:
        """Train on original and mixed images; send spectra unless the server has them."""
        settings, extras = self.settings, {}
        if settings.mixing:
            require_images(
                work,
                what="feddg mixes the spectra of images",
                otherwise=", or --set mixing=false for its episodic step alone",
            )
            if bank_key(SPECTRA, work.client) not in work.received:
                extras[SPECTRA] = own_spectra(work, window=settings.window, most=settings.spectra)
        loss = _EpisodicLoss(work, settings)
        work.fit(loss)
        return work.update(extras=extras, diagnostics=loss.means.result())

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse spectra that no images of the client have."""
        spectra = update.extras.get(SPECTRA)
        if spectra is None:
            return ""
        fits = spectra.dtype is torch.float16 and spectra.ndim == 4 and 0 < len(spectra) <= update.samples
        return "" if fits and bool((spectra >= 0).all()) else "sent spectra that no images have"

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, and add new spectra to the bank."""
        add_to_bank(work.state, SPECTRA, work.updates.clients, work.updates.extras)
        work.diagnostics["spectra in the bank"] = sum(map(len, read_bank(work.state, SPECTRA).values()))
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


class _EpisodicLoss:
    """Loss of a client on a batch, with running means of its terms and of how much mixing changed images."""

    def __init__(self, work: ClientWork, settings: FedDGSettings) -> None:
        self.work, self.settings = work, settings
        self.partners = Partners(work.received if settings.mixing else {}, work.client)
        self.mixing = work.generator("mixing")
        self.means = RunningMeans()

    def __call__(self, batch: Batch) -> Tensor:
        with nullcontext() if self.settings.first_order else blocked_maps(False):
            train = self._loss(self.work.module(batch.inputs), batch.targets)
        self.means.add("loss on own images", train, samples=len(batch.targets))
        if self.partners.clients:
            inputs = self._mix(batch.inputs)
        elif self.settings.episodic and not self.settings.mixing:
            inputs = batch.inputs
        else:
            return train
        if self.settings.episodic:
            train, test = episodic_losses(
                self.work.module,
                train,
                inputs,
                test_loss=lambda outputs: self._loss(outputs, batch.targets),
                inner_lr=self.settings.inner_lr,
                first_order=self.settings.first_order,
            )
        else:
            test = self._loss(self.work.module(inputs), batch.targets)
        self.means.add("loss on mixed images", test, samples=len(batch.targets))
        return train + test

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.work.task_loss(outputs, targets)

    @torch.no_grad()
    def _mix(self, inputs: Tensor) -> Tensor:
        """Mix other clients' amplitudes into a batch.

        Done on the scale of pixels: the mean of a normalized image may be negative, and mixing amplitudes of
        means with different signs would confuse dark and bright.
        """
        normalize = self.work.prepare.normalize
        partners = self.partners.draw(len(inputs), generator=self.mixing).to(inputs.device)
        shares = torch.rand(len(inputs), generator=self.mixing).to(inputs.device)
        images = normalize.undo(inputs)
        mixed = mix_amplitudes(images, partners, shares, window=self.settings.window).clamp_(0, 1)
        self.means.add("change by mixing", (mixed - images).abs().mean(), samples=len(inputs))
        last = inputs.is_contiguous(memory_format=torch.channels_last)
        return normalize.finish(mixed).contiguous(
            memory_format=torch.channels_last if last else torch.contiguous_format
        )
