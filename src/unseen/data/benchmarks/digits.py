"""The ten digits from several collections, one domain each.

`digits` takes those of MNIST, MNIST-M, USPS, SVHN and SYN that are present. `digits-chars74k` is MNIST,
MNIST-M, USPS and the digits of Chars74K: in computer fonts (`font`) and in photographs (`scene`). Many fonts
draw a digit alike, so images of `font` that show the same are a group, which splits keep together.
"""

from __future__ import annotations

import bz2
import gzip
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.copies import number_originals
from unseen.data.dataset import DataSet, Indices
from unseen.data.download import Acquisition, Download, RemoteFile
from unseen.data.grouping import group_keys
from unseen.data.images.decode import Pixels
from unseen.data.sources import SOURCES, DataRequest, Source, require_data_root
from unseen.errors import UnseenError
from unseen.fileio import write_atomically

DIGIT_DOMAINS = ("mnist", "mnistm", "usps", "svhn", "syn")
CHARS74K_DOMAINS = ("mnist", "mnistm", "usps", "font", "scene")
DIGIT_CLASSES = tuple("0123456789")
NPZ_KEYS = ("train_x", "train_y", "test_x", "test_y")
_SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
_NEEDS = (
    "digits/NAME.npz (arrays train_x, train_y, test_x, test_y; uint8) for at least two of "
    + ", ".join(DIGIT_DOMAINS)
    + f" (or, for SVHN, its release digits/svhn/{_SVHN_FILES[0]} and {_SVHN_FILES[1]})"
)
_NEEDS_CHARS74K = "digits/NAME.npz (arrays train_x, train_y, test_x, test_y; uint8) for " + ", ".join(
    CHARS74K_DOMAINS
)


def load_digits(request: DataRequest) -> DataSet:
    """Load every digit collection below the data root as one domain each, train and test parts joined."""
    root = require_data_root(request, needs=_NEEDS)
    present = present_digits(root)
    if len(present) < 2:
        found = f"only {present[0]}" if present else "none"
        raise UnseenError(f"digits: found {found} in {root / 'digits'}; put there {_NEEDS}")
    absent = [name for name in DIGIT_DOMAINS if name not in present]
    notes = (f"domains without files, left out: {', '.join(absent)}",) if absent else ()
    return _join_collections("digits", root, present, request, notes)


def load_chars74k(request: DataRequest) -> DataSet:
    """Load MNIST, MNIST-M, USPS and the two collections of Chars74K, all of which must be present."""
    root = require_data_root(request, needs=_NEEDS_CHARS74K)
    absent = [name for name in CHARS74K_DOMAINS if not _exists(root, name)]
    if absent:
        raise UnseenError(
            f"digits-chars74k: {', '.join(absent)} missing in {root / 'digits'}; put there {_NEEDS_CHARS74K}"
        )
    data = _join_collections("digits-chars74k", root, list(CHARS74K_DOMAINS), request)
    names: list[str | None] = [None] * len(data)
    fonts = data.indices("font")
    for place, number in zip(fonts.tolist(), number_originals(data.inputs[fonts]).tolist(), strict=True):
        names[place] = f"font {number}"
    keys = group_keys(names, np.array(data.domains)[data.domain_of].tolist())
    return replace(data, split_group_of=keys)


def _join_collections(
    name: str, root: Path, present: list[str], request: DataRequest, notes: tuple[str, ...] = ()
) -> DataSet:
    """Read the collections, each as one domain, resized to RGB squares."""
    size = request.image_size or 32
    images, labels = [], []
    for done, collection in enumerate(present):
        request.progress("reading digits", done, len(present))
        pixels, targets = read_digits(root, collection)
        images.append(to_rgb(resize_images(pixels, size)))
        labels.append(targets)
    request.progress("reading digits", len(present), len(present))
    return DataSet(
        name=name,
        task="classification",
        inputs=np.concatenate(images),
        targets=np.concatenate(labels),
        domain_of=np.repeat(np.arange(len(present)), [len(part) for part in labels]),
        domains=tuple(present),
        classes=DIGIT_CLASSES,
        notes=notes,
    )


def read_digits(root: Path, name: str) -> tuple[Pixels, Indices]:
    """Read one collection: images (n, height, width, channels) and their digits, train before test."""
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
            f"{path}: images are {images.dtype} of shape {images.shape}; "
            f"expected uint8 (n, height, width) or (n, height, width, 3)"
        )
    if len(images) != len(labels) or labels.ndim != 1 or not np.isin(labels, np.arange(10)).all():
        raise UnseenError(f"{path}: expected one label 0..9 per image; found {_seen(labels)}")
    return images, labels.astype(np.int64)


def present_digits(root: Path) -> list[str]:
    """List the collections whose files are below the data root."""
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
    """Read the release, which has the image index as the last axis and labels the digit zero 10."""
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


_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_USPS = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/",)
_IDX_BYTES = 8
"""The type code of unsigned bytes in the header of an IDX file."""


def mnist_arrays(files: Mapping[str, Path]) -> dict[str, Pixels]:
    """Read the four IDX files."""
    return {
        f"{ours}_{kind}": _read_idx(files[f"{theirs}-{content}-ubyte.gz"])
        for ours, theirs in (("train", "train"), ("test", "t10k"))
        for kind, content in (("x", "images-idx3"), ("y", "labels-idx1"))
    }


def usps_arrays(files: Mapping[str, Path]) -> dict[str, Pixels]:
    """Read the two LIBSVM files: labels 1 to 10 are the digits 0 to 9, pixels are between -1 and 1."""
    arrays: dict[str, Pixels] = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        with bz2.open(files[name], "rt", encoding="ascii") as lines:
            rows = [line.split() for line in lines if line.strip()]
        values = np.array([[float(pair.partition(":")[2]) for pair in row[1:]] for row in rows])
        arrays[f"{part}_x"] = np.rint((values + 1) * 127.5).astype(np.uint8).reshape(-1, 16, 16)
        arrays[f"{part}_y"] = np.array([int(float(row[0])) - 1 for row in rows], np.uint8)
    return arrays


def _read_idx(path: Path) -> Pixels:
    with gzip.open(path) as file:
        content = file.read()
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4").astype(int)
    if content[2] != _IDX_BYTES or len(content) - start != shape.prod():
        raise ValueError(f"no IDX file of bytes: header {content[:4].hex()}, {len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _as_npz(
    read: Callable[[Mapping[str, Path]], dict[str, Pixels]],
) -> Callable[[Mapping[str, Path], Path], None]:
    """Create a conversion that writes what `read` returns."""

    def convert(files: Mapping[str, Path], target: Path) -> None:
        try:
            arrays: dict[str, Any] = dict(read(files))
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise UnseenError(f"{target.name}: the downloaded files cannot be read ({error})") from error
        write_atomically(target, lambda temporary: np.savez_compressed(temporary, **arrays))

    return convert


def _files(folders: tuple[str, ...], sums: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(name, tuple(folder + name for folder in folders), md5) for name, md5 in sums.items()
    )


MNIST = Download(
    title="MNIST",
    licence="Creative Commons Attribution-Share Alike 3.0, Yann LeCun and Corinna Cortes",
    free=True,
    files=_files(
        _MNIST,
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    makes=("digits/mnist.npz",),
    convert=_as_npz(mnist_arrays),
)
USPS = Download(
    title="USPS",
    licence="none stated (LIBSVM data sets)",
    free=False,
    files=_files(
        _USPS,
        {"usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197", "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118"},
    ),
    makes=("digits/usps.npz",),
    convert=_as_npz(usps_arrays),
)
SVHN = Download(
    title="SVHN",
    licence="for non-commercial use only",
    free=False,
    files=_files(
        _SVHN,
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    makes=("digits/svhn/train_32x32.mat", "digits/svhn/test_32x32.mat"),
)


_CHUNK = 4096


def resize_images(images: Pixels, size: int, *, smooth: bool = False) -> Pixels:
    """Resize (n, height, width, channels) to squares: bilinear with antialiasing, or bicubic if `smooth`."""
    if images.shape[1:3] == (size, size):
        return images
    mode = "bicubic" if smooth else "bilinear"
    return _in_chunks(
        images,
        size,
        lambda part: F.interpolate(part, size=(size, size), mode=mode, antialias=True, align_corners=False),
    )


def rotate_images(images: Pixels, degrees: float, *, interpolation: str = "bilinear") -> Pixels:
    """Rotate squares (n, side, side, channels) clockwise about their centre; outside is black.

    A negative angle rotates counter-clockwise.

    interpolation  bilinear, nearest or bicubic
    """
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), math.sin(angle), 0.0], [-math.sin(angle), math.cos(angle), 0.0]])
    side = images.shape[1]

    def rotate(part: Tensor) -> Tensor:
        grid = F.affine_grid(turn.expand(len(part), 2, 3), list(part.shape), align_corners=False)
        return F.grid_sample(part, grid, mode=interpolation, padding_mode="zeros", align_corners=False)

    return _in_chunks(images, side, rotate)


def to_rgb(images: Pixels) -> Pixels:
    """Convert (n, height, width) or one-channel images to three equal channels."""
    if images.ndim == 3:
        images = images[..., None]
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def _in_chunks(images: Pixels, side: int, work: Callable[[Tensor], Tensor]) -> Pixels:
    """Apply `work` to float images (n, channels, height, width) part by part, rounding to uint8."""
    result = np.empty((len(images), side, side, images.shape[3]), np.uint8)
    for start in range(0, len(images), _CHUNK):
        part = torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK]))
        done = work(part.permute(0, 3, 1, 2).float()).round_().clamp_(0, 255)
        result[start : start + _CHUNK] = done.to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return result


SOURCES.register("digits")(
    Source(
        load=load_digits,
        summary="digits of MNIST, MNIST-M, USPS, SVHN and SYN, those that are present, 32x32 RGB",
        domains=", ".join(DIGIT_DOMAINS),
        acquisition=Acquisition(
            licence="; ".join(f"{part.title} {part.licence}" for part in (MNIST, USPS, SVHN)),
            where="MNIST, USPS and SVHN can be downloaded; MNIST-M and SYN come from the authors of "
            "'Unsupervised Domain Adaptation by Backpropagation' (Ganin and Lempitsky 2015)",
            put=_NEEDS,
            downloads=(MNIST, USPS, SVHN),
        ),
        present=present_digits,
    )
)
SOURCES.register("digits-chars74k")(
    Source(
        load=load_chars74k,
        summary="digits of MNIST, MNIST-M, USPS and Chars74K (computer fonts, natural scenes), 32x32 RGB",
        domains=", ".join(CHARS74K_DOMAINS),
        grouped=True,
        acquisition=Acquisition(
            licence="; ".join(
                [*(f"{part.title} {part.licence}" for part in (MNIST, USPS)), "others none stated"]
            ),
            where="MNIST and USPS can be downloaded; MNIST-M comes from Ganin and Lempitsky (2015); font and "
            "scene are the digits 0 to 9 of EnglishFnt and EnglishImg in Chars74K, 'Character Recognition in "
            "Natural Images' (de Campos et al. 2009)",
            put=_NEEDS_CHARS74K,
            downloads=(MNIST, USPS),
        ),
        present=lambda root: [name for name in CHARS74K_DOMAINS if _exists(root, name)],
    )
)
