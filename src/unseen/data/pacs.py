"""PACS: photographs, art paintings, cartoons and sketches of seven kinds of things (Li et al., 2017)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PIL import Image

from unseen.data.dataset import DataSet
from unseen.data.folders import DEFAULT_IMAGE_SIZE, load_folder
from unseen.data.roots import data_root
from unseen.data.scan import scan_folder
from unseen.data.sources import SOURCES, DataRequest, Source
from unseen.errors import UnseenError

PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_RELEASED_IMAGES = 9991
_RELEASED_SIDE = 227
_PLACES = ("pacs", "PACS", "pacs/kfold", "PACS/kfold")
_NEEDS = (
    "the PACS release (9991 images; search for 'PACS domain generalization dataset') as "
    "pacs/DOMAIN/CLASS/*.jpg with the domains " + ", ".join(PACS_DOMAINS)
)


def load_pacs(request: DataRequest) -> DataSet:
    """Load PACS from below the data root, checking that its domains and classes are all there."""
    folder = _find(data_root(request, needs=_NEEDS))
    scan = scan_folder(folder)
    _check(folder, "domains", scan.domains, PACS_DOMAINS)
    _check(folder, "classes", scan.classes, PACS_CLASSES)
    data = load_folder(folder, request)
    size = request.image_size or DEFAULT_IMAGE_SIZE
    notes = [*data.notes, f"images brought to {size} px from {_side_text(folder)}"]
    if len(data) != _RELEASED_IMAGES:
        notes.append(f"{len(data)} images; the release has {_RELEASED_IMAGES}")
    return replace(data, name="pacs", notes=tuple(notes))


def _find(root: Path) -> Path:
    for place in _PLACES:
        if (root / place / PACS_DOMAINS[0]).is_dir():
            return root / place
    raise UnseenError(f"pacs: no folder {root / 'pacs' / PACS_DOMAINS[0]}; put {_NEEDS} below {root}")


def _check(folder: Path, what: str, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    missing = ", ".join(sorted(set(expected) - set(found)))
    extra = ", ".join(sorted(set(found) - set(expected)))
    if missing or extra:
        raise UnseenError(
            f"{folder}: {what} are not those of PACS: missing {missing or 'none'}, extra {extra or 'none'}; "
            f"expected {', '.join(expected)}"
        )


def _side_text(folder: Path) -> str:
    """Tell how large the files of this copy are, by the first that opens."""
    for path in sorted((folder / PACS_DOMAINS[0] / PACS_CLASSES[0]).iterdir()):
        try:
            with Image.open(path) as image:
                side = max(image.size)
        except OSError:
            continue
        return f"{side} px" + (
            f" (this copy; the release has {_RELEASED_SIDE})" if side != _RELEASED_SIDE else ""
        )
    return "files of unknown size"


SOURCES.register("pacs")(
    Source(
        load=load_pacs,
        description=f"PACS, {_RELEASED_IMAGES} images, 7 classes, RGB, {DEFAULT_IMAGE_SIZE} px unless told",
        domains=", ".join(PACS_DOMAINS),
    )
)
