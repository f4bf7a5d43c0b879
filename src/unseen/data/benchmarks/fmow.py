"""FMoW-WILDS: land use from satellite images of sixteen years, tested on the last two.

A domain is a year, a group a region of the world. As in WILDS, the years up to 2012 are for training, of 2013
to 2015 only the release's validation images are used (for model selection), of 2016 and 2017 only its test
images, and the region "Other" counts in the average but cannot be the worst.
"""

from __future__ import annotations

from pathlib import Path

from unseen.data.benchmarks.wilds import Release, Row, Sample, load_samples, read_table
from unseen.data.dataset import DataSet
from unseen.data.images.listing import DEFAULT_IMAGE_SIZE
from unseen.data.sources import SOURCES, DataRequest, Source
from unseen.errors import UnseenError

YEARS = tuple(str(year) for year in range(2002, 2018))
VALIDATION_YEARS = ("2013", "2014", "2015")
TEST_YEARS = ("2016", "2017")
RELEASE = Release(
    name="fmow",
    places=("fmow_v1.1", "fmow"),
    table="rgb_metadata.csv",
    columns=("split", "category", "country_code", "timestamp"),
)
COUNTRIES = "country_code_mapping.csv"
_NO_REGION = ("", "Other")
_PARTS = ("train", "val", "test")
_PARTS_OF_YEAR = {**dict.fromkeys(VALIDATION_YEARS, ("val",)), **dict.fromkeys(TEST_YEARS, ("test",))}


def load_fmow(request: DataRequest) -> DataSet:
    """Load the images that WILDS uses; regions follow from the country codes."""
    folder, rows = RELEASE.read(request)
    regions = _regions(folder / COUNTRIES)
    try:
        samples = [_sample(number, row, regions) for number, row in enumerate(rows) if _is_used(row)]
    except ValueError as error:
        raise UnseenError(f"{folder / RELEASE.table}: not the released metadata ({error})") from error
    classes = tuple(sorted({row["category"] for row in rows}))
    return load_samples("fmow", folder, samples, request, size=DEFAULT_IMAGE_SIZE, classes=classes)


def _is_used(row: Row) -> bool:
    """Check whether the row's part of the release is one that its year is used for; `seq` never is."""
    if row["split"] not in _PARTS:
        return False
    return row["split"] in _PARTS_OF_YEAR.get(_year(row), _PARTS)


def _sample(number: int, row: Row, regions: dict[str, str]) -> Sample:
    region = regions.get(row["country_code"], "")
    return Sample(
        file=f"images/rgb_img_{number}.png",
        domain=_year(row),
        label=row["category"],
        group="" if region in _NO_REGION else region,
    )


def _year(row: Row) -> str:
    year = int(row["timestamp"][:4])
    return str(min(max(year, int(YEARS[0])), int(YEARS[-1])))


def _regions(path: Path) -> dict[str, str]:
    return {row["alpha-3"]: row["region"].strip() for row in read_table(path, ("alpha-3", "region"))}


SOURCES.register("fmow")(
    Source(
        load=load_fmow,
        summary="FMoW-WILDS: land use from satellites, 141696 images, 62 classes, RGB, "
        f"{DEFAULT_IMAGE_SIZE} px by default",
        domains=", ".join(YEARS),
        acquisition=RELEASE.acquisition("FMoW Challenge Public License (non-commercial)"),
        present=lambda root: YEARS if RELEASE.find(root) else (),
        hold_out=TEST_YEARS,
        validate_on=VALIDATION_YEARS,
    )
)
