"""Camelyon17-WILDS: tumour detection in tissue patches of five hospitals, one of them held out.

The release numbers hospitals from 0 (the WILDS paper from 1): 0, 3 and 4 are for training, 1 for model
selection, 2 for the test.
"""

from __future__ import annotations

from unseen.data.benchmarks.wilds import Release, Row, Sample, load_samples
from unseen.data.dataset import DataSet
from unseen.data.sources import SOURCES, DataRequest, Source
from unseen.errors import UnseenError

HOSPITALS = tuple(f"hospital_{number}" for number in range(5))
CLASSES = ("normal", "tumor")
SIDE = 96
RELEASE = Release(
    name="camelyon17",
    places=("camelyon17_v1.0", "camelyon17"),
    table="metadata.csv",
    columns=("patient", "node", "x_coord", "y_coord", "tumor", "center"),
)


def load_camelyon17(request: DataRequest) -> DataSet:
    """Load all patches; a hospital is a domain and a group, so that the worst hospital is reported."""
    folder, rows = RELEASE.read(request)
    try:
        samples = [_sample(row) for row in rows]
    except (ValueError, IndexError) as error:
        raise UnseenError(f"{folder / RELEASE.table}: not the released metadata ({error})") from error
    return load_samples("camelyon17", folder, samples, request, size=SIDE, classes=CLASSES)


def _sample(row: Row) -> Sample:
    slide = f"patient_{row['patient']}_node_{row['node']}"
    hospital = HOSPITALS[int(float(row["center"]))]
    return Sample(
        file=f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png",
        domain=hospital,
        label=CLASSES[int(float(row["tumor"]))],
        group=hospital,
    )


SOURCES.register("camelyon17")(
    Source(
        load=load_camelyon17,
        summary=f"Camelyon17-WILDS: tumour in tissue, 455954 patches, 2 classes, {SIDE} px by default",
        domains=", ".join(HOSPITALS),
        acquisition=RELEASE.acquisition("CC0 (public domain)"),
        present=lambda root: HOSPITALS if RELEASE.find(root) else (),
        hold_out=("hospital_2",),
        validate_on=("hospital_1",),
    )
)
