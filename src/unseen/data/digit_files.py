"""The released files of MNIST, USPS and SVHN, and how they become `digits/NAME.npz`.

Addresses and checksums are those that torchvision publishes.
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.fetch import RemoteFile
from unseen.data.obtain import Download
from unseen.errors import UnseenError
from unseen.fileio import write_atomically

_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_USPS = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/",)
_IDX_BYTES = 8
"""The type code of unsigned bytes in the header of an IDX file."""

Pixels = npt.NDArray[np.uint8]


def mnist_arrays(files: Mapping[str, Path]) -> dict[str, Pixels]:
    """Read the four IDX files."""
    return {
        f"{ours}_{kind}": _read_idx(files[f"{theirs}-{content}-ubyte.gz"])
        for ours, theirs in (("train", "train"), ("test", "t10k"))
        for kind, content in (("x", "images-idx3"), ("y", "labels-idx1"))
    }


def usps_arrays(files: Mapping[str, Path]) -> dict[str, Pixels]:
    """Read the two LIBSVM files: labels 1 to 10 are the digits 0 to 9, pixels lie between -1 and 1."""
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
    """Make a conversion that writes what `read` gives."""

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
