"""Find images that show the same: equal, resized, or turned by a symmetry of the square.

Each image is compared by a small grey thumbnail. A reflection does not change the magnitudes |C[u, v]| of its
DCT coefficients, and a quarter turn swaps u and v, so that |C[u, v]| + |C[v, u]| and its difference do not
depend on which of the eight symmetries was applied. Near neighbours in these numbers are then compared pixel
by pixel in all eight positions. Turns by other angles and crops are not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

THUMB = 16
"""Side of the thumbnails."""
_LOW = 5
"""Side of the block of low frequencies that is used."""
_RADIUS = 32.0
"""Largest distance of near neighbours; a resized copy is below 10."""
_MOST_NEIGHBOURS = 8
_CHUNK = 4096
_FLAT = 1.0
"""Thumbnails with a smaller standard deviation show nothing, and all such images look the same."""
Thumbs = npt.NDArray[np.float32]
Pairs = npt.NDArray[np.int64]


def make_thumbnails(images: npt.NDArray[np.uint8]) -> Thumbs:
    """Reduce images (n, height, width, channels) to grey squares (n, 16, 16)."""
    made = np.empty((len(images), THUMB, THUMB), dtype=np.float32)
    for start in range(0, len(images), _CHUNK):
        part = torch.from_numpy(images[start : start + _CHUNK].astype(np.float32).mean(axis=3))
        small = F.interpolate(part[:, None], size=(THUMB, THUMB), mode="bilinear", antialias=True)
        made[start : start + _CHUNK] = small[:, 0].numpy()
    return made


def find_copies(thumbs: Thumbs) -> Pairs:
    """Return pairs (i, j), i < j, of images that show the same; of many equal ones only some pairs."""
    from scipy.spatial import cKDTree

    shown = np.flatnonzero(thumbs.std(axis=(1, 2)) >= _FLAT)
    if len(shown) < 2:
        return np.empty((0, 2), dtype=np.int64)
    points = describe_thumbnails(thumbs[shown])
    near = min(_MOST_NEIGHBOURS, len(shown))
    _, found = cKDTree(points).query(points, k=near, distance_upper_bound=_RADIUS)
    first, place = np.nonzero(found < len(shown))
    pairs = np.sort(np.column_stack([first, found[first, place]]), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    pairs = shown[pairs]
    copies: Pairs = pairs[_show_the_same(thumbs[pairs[:, 0]], thumbs[pairs[:, 1]])]
    return copies


def number_originals(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Give each image a number, the same for all that show the same: equal ones and found copies."""
    _, first, original = np.unique(
        images.reshape(len(images), -1), axis=0, return_index=True, return_inverse=True
    )
    numbers = np.arange(len(first))
    for rows in _join_pairs(find_copies(make_thumbnails(images[first]))):
        numbers[rows] = rows[0]
    joined: npt.NDArray[np.int64] = numbers[original.reshape(-1)]
    return joined


def describe_thumbnails(thumbs: Thumbs) -> npt.NDArray[np.float64]:
    """Compute numbers that are equal for all eight positions of an image."""
    from scipy.fft import dctn

    size = np.abs(dctn(thumbs, axes=(1, 2), norm="ortho")[:, :_LOW, :_LOW])
    swapped = size.transpose(0, 2, 1)
    row, column = np.triu_indices(_LOW)
    both = np.concatenate([size + swapped, np.abs(size - swapped)], axis=0).reshape(2, *size.shape)
    described: npt.NDArray[np.float64] = np.concatenate(list(both[:, :, row, column]), axis=1) / 2
    return described


def _show_the_same(first: Thumbs, second: Thumbs) -> npt.NDArray[np.bool_]:
    """Compare pairs pixel by pixel in the eight positions: mean difference against contrast."""
    allowed = np.minimum(3.0, 0.1 * first.std(axis=(1, 2)))
    least: npt.NDArray[np.float64] = np.full(len(first), np.inf)
    for flipped in (second, second.transpose(0, 2, 1)):
        for quarters in range(4):
            turned = np.rot90(flipped, quarters, axes=(1, 2))
            least = np.minimum(least, np.abs(first - turned).mean(axis=(1, 2)))
    same: npt.NDArray[np.bool_] = least <= allowed
    return same


def copy_warnings(
    pairs: Pairs, *, names: Sequence[str], domains: Sequence[str], groups: Sequence[Any] | None, option: str
) -> list[str]:
    """Warn about copies in several domains, and about those that a split may separate.

    groups  the group of each image, where groups are named; a split by group keeps its members together
    option  how groups are named, for the advice
    """
    sets = _join_pairs(pairs)
    found = []
    leaking = [rows for rows in sets if len({domains[row] for row in rows}) > 1]
    if leaking:
        example = _example(leaking, names, domains)
        found.append(
            f"{len(leaking)} images are in more than one domain, for example {example}: "
            "the held-out domain leaks"
        )
    loose = [rows for rows in sets if groups is None or len({groups[row] for row in rows}) > 1]
    if loose:
        found.append(
            f"{len(loose)} images occur more than once, the same, turned or resized, for example "
            f"{_example(loose, names)}: a split may train on one copy and validate on another; keep copies "
            f"together with {option}"
        )
    return found


def _join_pairs(pairs: Pairs) -> list[list[int]]:
    """Join pairs that share an image; each list is one image with its copies."""
    member: dict[int, list[int]] = {}
    for first, second in pairs.tolist():
        one, other = member.get(first, [first]), member.get(second, [second])
        if one is other:
            continue
        for row in other:
            member[row] = one
        one.extend(other)
        for row in one:
            member[row] = one
    unique: Mapping[int, list[int]] = {id(rows): rows for rows in member.values()}
    return [sorted(rows) for rows in unique.values()]


def _example(sets: list[list[int]], names: Sequence[str], domains: Sequence[str] | None = None) -> str:
    """Name two images of the first set, of different domains if these are given."""
    first, *others = sets[0]
    second = next((row for row in others if domains is None or domains[row] != domains[first]), others[0])
    return f"{names[first]} and {names[second]}"
