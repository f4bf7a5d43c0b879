"""Styles of inner maps, shifted and explored: the arithmetic of StableFDG's three style steps.

Maps come as (n, channels, positions). The mean and deviation of a channel over its positions are the image's
style; gradients do not flow through them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.data.augmentation.feature_styles import blend_styles, style_of
from unseen.data.augmentation.sample_mixing import draw_beta, draw_partners

_EPSILON = 1e-6


def styles_of(maps: Tensor) -> Tensor:
    """Return every image's channel means and deviations as constants: (n, 2, channels)."""
    return torch.cat(style_of(maps.detach()), dim=2).movedim(2, 1)


def summarize_styles(styles: Tensor) -> Tensor:
    """Compute mean and deviation over images of their styles: (2, 2, channels).

    The deviation of one image is that of equal images.
    """
    spread = styles.var(0) if len(styles) > 1 else torch.zeros_like(styles[0])
    return torch.stack([styles.mean(0), (spread + _EPSILON).sqrt()])


def shift_styles(maps: Tensor, foreign: Tensor, *, fraction: float, generator: torch.Generator) -> Tensor:
    """Give the last part of a batch styles of another client, and the others centres of the batch's own.

    foreign   what `summarize_styles` returned at the other client; each number of a new style is drawn from
              a normal distribution, and deviations below 0 are 0
    fraction  part of the batch with new styles
    """
    styles, foreign = styles_of(maps), foreign.to(maps)
    drawn = round(fraction * len(maps))
    noise = torch.randn(drawn, *foreign.shape[1:], generator=generator).to(maps)
    new = foreign[0] + noise * foreign[1]
    new[:, 1].clamp_(min=0)
    if kept := len(maps) - drawn:
        centers = style_centers(styles.flatten(1), kept, generator=generator)
        new = torch.cat([centers.unflatten(1, styles.shape[1:]), new])
    return _restyle(maps, styles, new)


def style_centers(styles: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Cluster styles (n, numbers) by k-means++ and one step of Lloyd's algorithm: (count, numbers).

    A first center is drawn from the styles, then each with a probability proportional to the squared
    distance from the nearest center so far. Where all styles are centers already, one is drawn again.
    """
    seeds = [int(torch.randint(len(styles), (), generator=generator))]
    nearest = (styles - styles[seeds[0]]).square().sum(1)
    for _ in range(1, count):
        weights = nearest.double().cpu()
        if float(weights.sum()) <= 0:
            weights = torch.ones_like(weights)
        seeds.append(int(torch.multinomial(weights, 1, generator=generator)))
        nearest = nearest.minimum((styles - styles[seeds[-1]]).square().sum(1))
    centers = styles[seeds]
    member = torch.cdist(styles, centers, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    sums = torch.zeros_like(centers).index_add_(0, member, styles)
    sizes = torch.bincount(member, minlength=count)[:, None]
    return torch.where(sizes > 0, sums / sizes.clamp(min=1), centers)


def draw_balanced(targets: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Draw that many images of a batch so that its classes become as equal as possible, rarest first."""
    labels = targets.tolist()
    members = {
        label: [row for row, each in enumerate(labels) if each == label] for label in sorted({*labels})
    }
    sizes = {label: len(rows) for label, rows in members.items()}
    chosen: list[int] = []
    while len(chosen) < count:
        rarest = [label for label, size in sizes.items() if size == min(sizes.values())]
        for place in torch.randperm(len(rarest), generator=generator)[: count - len(chosen)].tolist():
            rows = members[rarest[place]]
            chosen.append(rows[int(torch.randint(len(rows), (), generator=generator))])
            sizes[rarest[place]] += 1
    return torch.tensor(chosen, dtype=torch.int64, device=targets.device)


def explore_styles(maps: Tensor, added: Tensor, *, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Add images of a batch again, in styles farther from the batch's mean: s + level * (s - mean of all s).

    Returns all maps, their styles as they are, and the styles that they should have.

    added  positions of the images that are added
    """
    styles = styles_of(maps)
    pushed = styles[added] + level * (styles[added] - styles.mean(0))
    return torch.cat([maps, maps[added]]), torch.cat([styles, styles[added]]), torch.cat([styles, pushed])


def mix_styles(
    maps: Tensor, own: Tensor, wanted: Tensor, *, alpha: float, generator: torch.Generator
) -> Tensor:
    """Give every image a blend of the wanted styles of itself and of another: t w_i + (1 - t) w_partner.

    t ~ Beta(alpha, alpha) per image, as in MixStyle.

    own  the styles that the maps have
    """
    share = draw_beta(len(maps), alpha, generator).to(maps)[:, None, None]
    partner = draw_partners(len(maps), generator).to(maps.device)
    return _restyle(maps, own, torch.lerp(wanted[partner], wanted, share))


def _restyle(maps: Tensor, own: Tensor, wanted: Tensor) -> Tensor:
    """Replace the styles `own` of maps by others."""
    mean, deviation = own.unsqueeze(3).unbind(1)
    new_mean, new_deviation = wanted.unsqueeze(3).unbind(1)
    return blend_styles(maps, (mean, deviation), (new_mean, new_deviation), maps.new_zeros(()))
