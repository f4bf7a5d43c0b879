"""Digits rotated by 0, 15, ..., 75 degrees, one domain per angle.

`rotated-digits` is part of scikit-learn and needs no download. `rotated-mnist` is the set of the CSAC
paper (section 5: the same 100 images per class in every domain), `rotated-mnist-disjoint` that of DomainBed
(all 70000 images, each in one domain only). Direction and interpolation are settings: the CSAC paper says
clockwise, but its numbers, higher at 75 degrees than at 0, are those of counter-clockwise rotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from unseen.data.benchmarks.digits import (
    DIGIT_CLASSES,
    MNIST,
    NPZ_KEYS,
    present_digits,
    read_digits,
    resize_images,
    rotate_images,
)
from unseen.data.dataset import DataSet, Indices
from unseen.data.download import Acquisition
from unseen.data.images.decode import Pixels
from unseen.data.sources import SOURCES, DataRequest, Source, data_settings, require_data_root
from unseen.errors import UnseenError
from unseen.hparams import Settings, setting
from unseen.seeding import numpy_generator

ANGLES = (0, 15, 30, 45, 60, 75)
_PER_CLASS = 100
_STROKES = 0.75
"""scikit-learn's digits touch the edge; at this fraction of the side they stay whole at every angle."""
_MNIST_FILE = f"digits/mnist.npz (arrays {', '.join(NPZ_KEYS)}; uint8)"

_DIRECTION = "clockwise or counter-clockwise"


@dataclass(frozen=True)
class RotationSettings(Settings):
    """How images are rotated."""

    direction: Literal["clockwise", "counter-clockwise"] = setting("clockwise", _DIRECTION)
    interpolation: Literal["bilinear", "nearest", "bicubic"] = setting(
        "bilinear", "how pixels between pixels are computed: bilinear, nearest or bicubic"
    )

    def rotate(self, images: Pixels, degrees: int) -> Pixels:
        """Rotate squares about their centre."""
        turn = degrees if self.direction == "clockwise" else -degrees
        return rotate_images(images, turn, interpolation=self.interpolation)


@dataclass(frozen=True)
class DisjointSettings(RotationSettings):
    """How images are rotated, with the direction of DomainBed."""

    direction: Literal["clockwise", "counter-clockwise"] = setting("counter-clockwise", _DIRECTION)


def load_rotated_digits(request: DataRequest) -> DataSet:
    """Load scikit-learn's 1797 digits; every image is in one domain only, classes are balanced."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    images = np.rint(bundled.images * (255 / 16)).astype(np.uint8)[..., None]
    targets = bundled.target.astype(np.int64)
    size = request.image_size or 16
    return _rotate_domains(
        "rotated-digits",
        _add_margin(resize_images(images, round(size * _STROKES), smooth=True), size),
        targets,
        rows=_spread_over_angles(targets, purpose="rotated-digits"),
        rotation=data_settings(request, RotationSettings),
    )


def load_rotated_mnist(request: DataRequest) -> DataSet:
    """Load the CSAC variant: the same 100 images per class at every angle."""
    images, targets = _mnist(request)
    order = numpy_generator(0, "rotated-mnist").permutation(len(targets))
    chosen = [order[targets[order] == digit][:_PER_CLASS] for digit in range(10)]
    short = [str(digit) for digit, rows in enumerate(chosen) if len(rows) < _PER_CLASS]
    if short:
        raise UnseenError(
            f"rotated-mnist takes {_PER_CLASS} of each digit; mnist.npz lacks some of {', '.join(short)}"
        )
    rows = np.sort(np.concatenate(chosen))
    return _rotate_domains(
        "rotated-mnist",
        resize_images(images[rows], request.image_size or 28),
        targets[rows],
        rows=[np.arange(len(rows))] * len(ANGLES),
        originals=rows,
        rotation=data_settings(request, RotationSettings),
        notes=(
            "every domain holds the same images (as in the CSAC paper): the held-out one has no new writers",
        ),
    )


def load_rotated_mnist_disjoint(request: DataRequest) -> DataSet:
    """Load the DomainBed variant: all images, shuffled, one sixth per angle."""
    images, targets = _mnist(request)
    order = numpy_generator(0, "rotated-mnist-disjoint").permutation(len(targets))
    return _rotate_domains(
        "rotated-mnist-disjoint",
        resize_images(images, request.image_size or 28),
        targets,
        rows=[np.sort(order[first :: len(ANGLES)]) for first in range(len(ANGLES))],
        rotation=data_settings(request, DisjointSettings),
    )


def _mnist(request: DataRequest) -> tuple[Pixels, Indices]:
    images, targets = read_digits(require_data_root(request, needs=_MNIST_FILE), "mnist")
    return images[..., :1], targets


def _present_angles(root: Path) -> list[str]:
    return [str(angle) for angle in ANGLES] if "mnist" in present_digits(root) else []


def _add_margin(images: Pixels, size: int) -> Pixels:
    before = (size - images.shape[1]) // 2
    after = size - images.shape[1] - before
    return np.pad(images, ((0, 0), (before, after), (before, after), (0, 0)))


def _spread_over_angles(targets: Indices, *, purpose: str) -> list[Indices]:
    """Assign the shuffled samples of each class to the angles in turn."""
    order = numpy_generator(0, purpose).permutation(len(targets))
    dealt = order[np.argsort(targets[order], kind="stable")]
    return [np.sort(dealt[first :: len(ANGLES)]) for first in range(len(ANGLES))]


def _rotate_domains(
    name: str,
    images: Pixels,
    targets: Indices,
    *,
    rows: list[Indices],
    rotation: RotationSettings,
    originals: Indices | None = None,
    notes: tuple[str, ...] = (),
) -> DataSet:
    """Rotate the rows of every domain by its angle.

    originals  number of each image in the whole collection, which names its group; its position if not given
    """
    turned = [rotation.rotate(images[mine], angle) for angle, mine in zip(ANGLES, rows, strict=True)]
    shown = np.concatenate(rows).astype(np.int64)
    return DataSet(
        name=name,
        task="classification",
        inputs=np.concatenate(turned),
        targets=np.concatenate([targets[mine] for mine in rows]),
        domain_of=np.repeat(np.arange(len(ANGLES)), [len(mine) for mine in rows]),
        domains=tuple(str(angle) for angle in ANGLES),
        classes=DIGIT_CLASSES,
        notes=notes,
        split_group_of=shown if originals is None else originals[shown],
    )


_DOMAINS = ", ".join(map(str, ANGLES))
_MNIST_ACQUISITION = Acquisition(
    licence=MNIST.licence, where="http://yann.lecun.com/exdb/mnist/", put=_MNIST_FILE, downloads=(MNIST,)
)

SOURCES.register("rotated-digits")(
    Source(
        load=load_rotated_digits,
        summary="scikit-learn's 1797 handwritten digits rotated by six angles, 16x16 grey; no download",
        domains=_DOMAINS,
        settings=RotationSettings,
    )
)
SOURCES.register("rotated-mnist")(
    Source(
        load=load_rotated_mnist,
        summary="MNIST rotated clockwise, the same 100 images per class at every angle (CSAC), 28x28 grey",
        domains=_DOMAINS,
        settings=RotationSettings,
        grouped=True,
        acquisition=_MNIST_ACQUISITION,
        present=_present_angles,
    )
)
SOURCES.register("rotated-mnist-disjoint")(
    Source(
        load=load_rotated_mnist_disjoint,
        summary="all 70000 of MNIST rotated counter-clockwise, each at one angle (DomainBed), 28x28 grey",
        domains=_DOMAINS,
        settings=DisjointSettings,
        acquisition=_MNIST_ACQUISITION,
        present=_present_angles,
    )
)
