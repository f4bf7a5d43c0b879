"""Where StableFDG moves styles: hooks behind the first stages of the network that a client trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unseen.errors import UsageError
from unseen.methods._shared import RunningMeans, bank_key, read_bank
from unseen.methods.stablefdg.map_styles import (
    draw_balanced,
    explore_styles,
    mix_styles,
    shift_styles,
    styles_of,
    summarize_styles,
)
from unseen.methods.stablefdg.stablefdg_settings import StableFDGSettings
from unseen.models import Network
from unseen.models.splitting import LeftOut
from unseen.seeding import torch_generator
from unseen.training import ClientWork
from unseen.training.feature_augment import change_maps, has_channels_last

STYLES = "mean and deviation of the styles of inner maps"
_STAGES = 3
_BATCH = 256


class StyleStages:
    """The stages of a network behind which styles are moved while a client trains.

    rows   for every row of the network's latest output, the position of its image in the batch
    means  running means of what was changed
    """

    rows: Tensor

    def __init__(self, work: ClientWork, settings: StableFDGSettings, means: RunningMeans) -> None:
        self.settings, self.means, self.module = settings, means, work.module
        self.stages = find_style_stages(work.module)
        if not self.stages:
            raise UsageError(
                "stablefdg moves the styles of inner maps, of which the trained part has none: use --train "
                "all, or --set sharing=0 --set mixing=0"
            )
        self.channels_last = has_channels_last(work.module)
        self.generator = work.generator("stablefdg: styles")
        self.foreign: Tensor | None = None
        self.targets = torch.empty(0)

    def measure(self, work: ClientWork) -> Tensor:
        """Summarize the styles of the client's images behind the first stage: see `summarize_styles`.

        With the weights as they are, in evaluation mode, without augmentation.
        """
        found: list[Tensor] = []

        def keep(maps: Tensor) -> Tensor:
            if maps.shape[2] < 2:
                raise UsageError(
                    "stablefdg shares the styles of the first stage's maps, which have a single position: "
                    "use a larger --image-size, or --set sharing=0"
                )
            found.append(styles_of(maps).cpu())
            return maps

        def watch(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            self._change(output, keep)

        handle = self.stages[0].register_forward_hook(watch)
        try:
            self.module.eval()
            with torch.no_grad():
                for positions in torch.arange(len(work.train)).split(_BATCH):
                    self.module(work.prepare(work.train.gather(positions)).inputs)
        finally:
            handle.remove()
        return summarize_styles(torch.cat(found))

    def begin(self, targets: Tensor) -> None:
        """Start a batch, whose classes decide which images are added."""
        self.targets = targets
        self.rows = torch.arange(len(targets), device=targets.device)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the hooks within the block."""
        with ExitStack() as handles:
            for number, stage in enumerate(self.stages):
                handle = stage.register_forward_hook(partial(self._move, number))
                handles.callback(handle.remove)
            yield

    def _move(self, number: int, _module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        behind_maps = number > 0 and output.ndim < 3
        if behind_maps or not self.module.training:
            return output
        if number == 0 and self.foreign is not None and self._happens(self.settings.sharing):
            output = self._change(output, partial(self._share, foreign=self.foreign))
        return self._change(output, self._mix) if self._happens(self.settings.mixing) else output

    def _share(self, maps: Tensor, *, foreign: Tensor) -> Tensor:
        shifted = shift_styles(maps, foreign, fraction=self.settings.shifted, generator=self.generator)
        self.means.add("change_by_sharing", (shifted - maps).abs().mean(), samples=len(maps))
        return shifted

    def _mix(self, maps: Tensor) -> Tensor:
        """Mix styles; the first stage of a pass that does also adds images in explored styles."""
        if maps.shape[2] < 2:  # one position has no style
            return maps
        size = len(self.targets)
        count = round(self.settings.oversampling * size) if len(maps) == size else 0
        added = draw_balanced(self.targets, count, generator=self.generator)
        self.rows = torch.cat([self.rows, added])
        maps, own, wanted = explore_styles(maps, added, level=self.settings.exploration)
        mixed = mix_styles(maps, own, wanted, alpha=self.settings.alpha, generator=self.generator)
        self.means.add("change_by_mixing", (mixed - maps).abs().mean(), samples=size)
        return mixed

    def _change(self, output: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        if output.ndim < 3:
            raise UsageError(
                "stablefdg moves the styles of feature maps, and the first stages of this network return "
                "none: use a convolutional network, or --set sharing=0 --set mixing=0"
            )
        return change_maps(output, change, channels_last=self.channels_last)

    def _happens(self, fraction: float) -> bool:
        return float(torch.rand((), generator=self.generator)) < fraction


def find_style_stages(module: nn.Module) -> list[nn.Module]:
    """Return the first three stages of a network that are trained, but not the last one that is tapped.

    Where a frozen part with all of them is left out, what it hands over takes their place.
    """
    for network in module.modules():
        if isinstance(network, Network) and (names := network.early_stages()):
            later = (network.tap_path(tap) for tap in network.tap_names[:-1])
            present = dict(network.named_modules())
            stages = [present[name] for name in dict.fromkeys([*names, *later]) if name in present]
            trained = [stage for stage in stages if not isinstance(stage, LeftOut)]
            return trained[:_STAGES] or stages[-1:]
    return []


def find_foreign_styles(work: ClientWork, *, own: Tensor) -> Tensor | None:
    """Find the styles that a client gets in this round: those of the next client in a ring that is drawn.

    Every client draws the same ring, so no two get the same styles. None if there is no other client, or if
    what it sent does not fit the client's `own`.
    """
    bank: Mapping[str, Tensor] = read_bank(work.received, STYLES)
    mine = bank_key(STYLES, work.client)
    names = sorted({*bank, mine})
    ring = torch.randperm(
        len(names), generator=torch_generator(work.seed, "stablefdg: whose styles", work.round)
    ).tolist()
    following = names[ring[(ring.index(names.index(mine)) + 1) % len(names)]]
    styles = bank.get(following) if following != mine else None
    return styles if styles is not None and styles.shape == own.shape else None


def could_be_styles(sent: Tensor | None) -> bool:
    """Check whether values are what `StyleStages.measure` returns, or none."""
    if sent is None:
        return True
    if sent.dtype is not torch.float32 or sent.ndim != 3 or sent.shape[:2] != (2, 2):
        return False
    return bool((sent[1] >= 0).all() and (sent[0, 1] >= 0).all())
