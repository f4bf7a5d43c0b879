"""PovertyMap-WILDS: the wealth of African villages from satellite images of eight channels.

A domain is the urban or the rural part of a country (46 domains, as in the PPDG paper), and the groups are
urban and rural: WILDS reports the correlation in the worse one. Countries are held out as in its fold A.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from unseen.data.benchmarks.wilds import Release, Row, Sample, load_samples
from unseen.data.dataset import DataSet
from unseen.data.images.decode import ImageDecoder, UnreadableImageError
from unseen.data.images.listing import DEFAULT_IMAGE_SIZE
from unseen.data.sources import SOURCES, DataRequest, Source
from unseen.errors import UnseenError

CHANNELS = 8
TEST_COUNTRIES = ("angola", "cote_d_ivoire", "ethiopia", "mali", "rwanda")
VALIDATION_COUNTRIES = ("benin", "burkina_faso", "guinea", "sierra_leone", "tanzania")
TRAINING_COUNTRIES = (
    "cameroon", "democratic_republic_of_congo", "ghana", "kenya", "lesotho", "malawi", "mozambique",
    "nigeria", "senegal", "togo", "uganda", "zambia", "zimbabwe",
)  # fmt: skip
RELEASE = Release(
    name="povertymap",
    places=("poverty_v1.1", "povertymap", "poverty"),
    table="dhs_metadata.csv",
    columns=("country", "urban", "wealthpooled"),
)
_URBAN = {"true": "urban", "1": "urban", "1.0": "urban", "false": "rural", "0": "rural", "0.0": "rural"}


def domains_of(countries: tuple[str, ...]) -> tuple[str, ...]:
    """Name the two domains of every country."""
    return tuple(f"{country}-{kind}" for country in sorted(countries) for kind in ("rural", "urban"))


DOMAINS = domains_of((*TRAINING_COUNTRIES, *VALIDATION_COUNTRIES, *TEST_COUNTRIES))


def load_povertymap(request: DataRequest) -> DataSet:
    """Load all villages; values are the release's, mean 0 and std 1 per channel."""
    folder, rows = RELEASE.read(request)
    try:
        samples = [_sample(number, row) for number, row in enumerate(rows)]
    except (ValueError, KeyError) as error:
        raise UnseenError(f"{folder / RELEASE.table}: not the released metadata ({error})") from error
    return load_samples("povertymap", folder, samples, request, size=DEFAULT_IMAGE_SIZE, form=LANDSAT)


def read_landsat(path: Path, size: int) -> npt.NDArray[np.float32]:
    """Read one file (`x`: channels x height x width) to (size, size, channels)."""
    try:
        values = _array_x(path)
    except OSError as error:
        raise UnreadableImageError(error.strerror or str(error)) from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableImageError(f"no .npz file with an array x ({error})") from error
    if values.ndim != 3 or len(values) != CHANNELS or not np.isfinite(values).all():
        raise UnreadableImageError(f"array of shape {values.shape}; expected {CHANNELS} channels of numbers")
    if values.shape[1:] != (size, size):
        image = torch.from_numpy(values)[None]
        values = F.interpolate(image, size=(size, size), mode="bilinear", antialias=True)[0].numpy()
    return np.ascontiguousarray(values.transpose(1, 2, 0))


def _array_x(path: Path, tries: int = 9) -> npt.NDArray[np.float32]:
    """Read the array; retry where Python 3.11 fails (SystemError) on headers parsed in threads."""
    try:
        with np.load(path) as arrays:
            values: npt.NDArray[np.float32] = arrays["x"].astype(np.float32)
    except SystemError:
        if not tries:
            raise
        return _array_x(path, tries - 1)
    return values


LANDSAT = ImageDecoder("landsat", read_landsat, channels=CHANNELS, dtype="<f4", version=1)


def _sample(number: int, row: Row) -> Sample:
    kind = _URBAN[row["urban"].strip().lower()]
    return Sample(
        file=f"images/landsat_poverty_img_{number}.npz",
        domain=f"{row['country']}-{kind}",
        value=float(row["wealthpooled"]),
        group=kind,
    )


SOURCES.register("povertymap")(
    Source(
        load=load_povertymap,
        summary="PovertyMap-WILDS: wealth of 19669 villages from satellites, regression, 8 channels, "
        f"{DEFAULT_IMAGE_SIZE} px by default",
        domains="23 countries as COUNTRY-urban and COUNTRY-rural",
        acquisition=RELEASE.acquisition(
            "images: public domain (LandSat, DMSP, VIIRS); wealth: from DHS surveys"
        ),
        present=lambda root: DOMAINS if RELEASE.find(root) else (),
        hold_out=domains_of(TEST_COUNTRIES),
        validate_on=domains_of(VALIDATION_COUNTRIES),
    )
)
