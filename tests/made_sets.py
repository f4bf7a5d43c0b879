"""Small sets of images in the exact layout of their formats, written by the formats' own libraries."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

DOMAINS = ("art", "photo", "sketch")
CLASSES = ("dog", "elephant")
COUNT = 6
"""Images per domain and class."""
SIDE = 20


def rows(count: int = COUNT) -> list[dict[str, Any]]:
    """Every image with its domain, class and patient; a patient has two images."""
    made = []
    generator = np.random.default_rng(0)
    for first, domain in enumerate(DOMAINS):
        for second, label in enumerate(CLASSES):
            for number in range(count):
                pixels = np.array([60 * first, 150 * second, 0]) + generator.integers(0, 90, (SIDE, SIDE, 3))
                patient = f"Doe^{domain}{label}{number // 2}"
                made.append(
                    {"pixels": pixels.astype(np.uint8), "domain": domain, "label": label, "patient": patient}
                )
    return made


def png(pixels: np.ndarray) -> bytes:
    with io.BytesIO() as out:
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()


def write_hub_parquet(folder: Path, *, shards: int = 2) -> Path:
    """Write what `huggingface-cli download flwrlabs/pacs --local-dir` leaves, by the library that made it."""
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "domain": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["unused", *CLASSES]),
            "patient": datasets.Value("string"),
        }
    )
    listed = [
        {
            "image": {"bytes": png(row["pixels"]), "path": f"pic_{number}.png"},
            "domain": row["domain"],
            "label": row["label"],
            "patient": row["patient"],
        }
        for number, row in enumerate(rows())
    ]
    whole = datasets.Dataset.from_list(listed, features=features)
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\ndataset_info: {}\n---\n")
    (folder / ".cache").mkdir()
    for number in range(shards):
        shard = folder / "data" / f"train-{number:05}-of-{shards:05}.parquet"
        whole.shard(shards, number, contiguous=True).to_parquet(shard, batch_size=7)
    return folder


def write_index(folder: Path, *, suffix: str = ".csv") -> Path:
    """Write ordinary images and an index with their paths, hospitals and patients."""
    (folder / "pictures").mkdir(parents=True)
    listed = []
    for number, row in enumerate(rows()):
        (folder / "pictures" / f"{number}.png").write_bytes(png(row["pixels"]))
        listed.append(
            {
                "path": f"pictures/{number}.png",
                "hospital": row["domain"],
                "target": row["label"],
                "patient": row["patient"],
            }
        )
    path = folder / f"index{suffix}"
    if suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(listed[0]))
            writer.writeheader()
            writer.writerows(listed)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(listed), path)
    return path


def write_webdataset(folder: Path) -> Path:
    """Write shards with the library's own writer: KEY.png, KEY.cls, KEY.json."""
    from webdataset import ShardWriter

    folder.mkdir(parents=True)
    pattern = str(folder / "train-%06d.tar")
    with ShardWriter(pattern, maxcount=14, verbose=0) as writer:
        for number, row in enumerate(rows()):
            writer.write(
                {
                    "__key__": f"{row['domain']}/sample{number:04}",
                    "png": png(row["pixels"]),
                    "cls": CLASSES.index(row["label"]),
                    "json": json.dumps({"domain": row["domain"], "patient": row["patient"]}),
                }
            )
    return folder


def dicom_dataset(pixels: np.ndarray, *, patient: str = "Doe^Jane", institution: str = "art") -> Any:
    """A secondary capture with 12-bit grey values, a patient's name and a private element."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = generate_uid(entropy_srcs=[patient])
    made.SOPClassUID = CTImageStorage
    made.PatientID, made.PatientName, made.InstitutionName = patient, "Secret^Name", institution
    made.Modality = "CT"
    block = made.private_block(0x0009, "MAKER", create=True)
    block.add_new(0x01, "LO", "private secret")
    made.Rows, made.Columns = pixels.shape[-2:]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 12, 11, 0
    made.PixelData = pixels.astype("<u2").tobytes()
    if pixels.ndim == 3:
        made.NumberOfFrames = len(pixels)
    return made


def save_dicom(made: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def write_dicom(folder: Path) -> Path:
    """Write site/class/file.dcm."""
    for number, row in enumerate(rows()):
        made = dicom_dataset(
            row["pixels"].astype(np.uint16).mean(axis=2) * 10,
            patient=row["patient"],
            institution=f"{row['domain']} clinic",
        )
        made.BodyPartExamined = row["label"].upper()
        save_dicom(made, folder / row["domain"] / row["label"] / f"{number}.dcm")
    return folder


def write_nifti(folder: Path) -> Path:
    """Write site/class/file.nii.gz, volumes of 12 x 14 x 8 voxels."""
    import nibabel

    generator = np.random.default_rng(0)
    for row, each in enumerate(rows()):
        place = folder / each["domain"] / each["label"]
        place.mkdir(parents=True, exist_ok=True)
        level = 300 * CLASSES.index(each["label"])
        values = (generator.normal(level, 50, (12, 14, 8))).astype(np.int16)
        nibabel.save(
            nibabel.Nifti1Image(values, np.diag([-1.0, -1.0, 1.0, 1.0])), place / f"sub-{row}.nii.gz"
        )
    return folder
