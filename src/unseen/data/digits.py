"""The ten digits as MNIST, MNIST-M, USPS, SVHN and SYN show them; the collections that are there are used."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from unseen.data.dataset import DataSet, Indices
from unseen.data.decode import Pixels
from unseen.data.digit_files import MNIST, SVHN, USPS
from unseen.data.obtain import Obtain
from unseen.data.pixels import resize_images, to_rgb
from unseen.data.roots import data_root
from unseen.data.sources import SOURCES, DataRequest, Source
from unseen.errors import UnseenError

DIGIT_DOMAINS = ("mnist", "mnistm", "usps", "svhn", "syn")
DIGIT_CLASSES = tuple("0123456789")
NPZ_KEYS = ("train_x", "train_y", "test_x", "test_y")
_SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
_NEEDS = (
    "digits/NAME.npz (arrays train_x, train_y, test_x, test_y; uint8) for at least two of "
    + ", ".join(DIGIT_DOMAINS)
    + f" (or, for SVHN, its release digits/svhn/{_SVHN_FILES[0]} and {_SVHN_FILES[1]})"
)


def load_digits(request: DataRequest) -> DataSet:
    """Load every digit collection below the data root as one domain each, train and test parts joined."""
    root = data_root(request, needs=_NEEDS)
    size = request.image_size or 32
    present = present_digits(root)
    if len(present) < 2:
        found = f"only {present[0]}" if present else "none"
        raise UnseenError(f"digits: found {found} in {root / 'digits'}; put there {_NEEDS}")
    images, labels = [], []
    for done, name in enumerate(present):
        request.progress("reading digits", done, len(present))
        pixels, targets = read_digits(root, name)
        images.append(to_rgb(resize_images(pixels, size)))
        labels.append(targets)
    request.progress("reading digits", len(present), len(present))
    absent = [name for name in DIGIT_DOMAINS if name not in present]
    return DataSet(
        name="digits",
        task="classification",
        inputs=np.concatenate(images),
        targets=np.concatenate(labels),
        domain_of=np.repeat(np.arange(len(present)), [len(part) for part in labels]),
        domains=tuple(present),
        classes=DIGIT_CLASSES,
        notes=(f"domains without files, left out: {', '.join(absent)}",) if absent else (),
    )


def read_digits(root: Path, name: str) -> tuple[Pixels, Indices]:
    """Read one collection: pictures (n, height, width, channels) and their digits, train before test."""
    path = root / "digits" / f"{name}.npz"
    if path.is_file():
        images, labels = _read_npz(path)
    elif name == "svhn" and _exists(root, name):
        path = root / "digits" / "svhn"
        images, labels = _read_svhn(path)
    else:
        raise UnseenError(f"no such file: {path}; expected arrays {', '.join(NPZ_KEYS)} (uint8) in it")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype != np.uint8:
        raise UnseenError(
            f"{path}: pictures are {images.dtype} of shape {images.shape}; "
            f"expected uint8 (n, height, width) or (n, height, width, 3)"
        )
    if len(images) != len(labels) or labels.ndim != 1 or not np.isin(labels, np.arange(10)).all():
        raise UnseenError(f"{path}: expected one label 0..9 a picture; found {_seen(labels)}")
    return images, labels.astype(np.int64)


def present_digits(root: Path) -> list[str]:
    """The collections whose files lie below the data root."""
    return [name for name in DIGIT_DOMAINS if _exists(root, name)]


def _exists(root: Path, name: str) -> bool:
    folder = root / "digits"
    official = name == "svhn" and all((folder / "svhn" / file).is_file() for file in _SVHN_FILES)
    return (folder / f"{name}.npz").is_file() or official


def _read_npz(path: Path) -> tuple[Pixels, Indices]:
    try:
        with np.load(path) as arrays:
            train_x, train_y, test_x, test_y = (arrays[key] for key in NPZ_KEYS)
        return np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    except KeyError as error:
        raise UnseenError(f"{path}: expected the arrays {', '.join(NPZ_KEYS)}; {error.args[0]}") from error
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UnseenError(f"{path}: not a readable .npz file of digits ({error}); get it again") from error


def _read_svhn(folder: Path) -> tuple[Pixels, Indices]:
    """Read the release, which keeps the number of the picture last and calls the digit zero 10."""
    from scipy.io import loadmat

    images, labels = [], []
    for name in _SVHN_FILES:
        try:
            found = loadmat(folder / name)
            images.append(np.moveaxis(found["X"], 3, 0))
            labels.append(found["y"].reshape(-1) % 10)
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
            raise UnseenError(f"{folder / name}: not the SVHN release ({error}); get it again") from error
    return np.concatenate(images), np.concatenate(labels)


def _seen(labels: Indices) -> str:
    return f"{labels.size} labels from {labels.min()} to {labels.max()}" if labels.size else "no labels"


SOURCES.register("digits")(
    Source(
        load=load_digits,
        description="digits of MNIST, MNIST-M, USPS, SVHN and SYN, those that are there, 32x32 RGB",
        domains=", ".join(DIGIT_DOMAINS),
        obtain=Obtain(
            licence="; ".join(f"{part.title} {part.licence}" for part in (MNIST, USPS, SVHN)),
            where="MNIST, USPS and SVHN can be downloaded; MNIST-M and SYN come from the authors of "
            "'Unsupervised Domain Adaptation by Backpropagation' (Ganin and Lempitsky 2015)",
            put=_NEEDS,
            downloads=(MNIST, USPS, SVHN),
        ),
        present=present_digits,
    )
)
