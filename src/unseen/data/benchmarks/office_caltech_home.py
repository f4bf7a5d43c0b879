"""Office-Caltech-Home: seven domains of Office-Home and Office-Caltech, with the classes both have.

The set of the CSAC paper (section 4.1), which names the domains and leaves out DSLR for its few images but
does not list the classes. Office-Caltech has ten: the eight below, headphones and projectors. Office-Home
has folders for neither of the last two, so eight are common.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unseen.data.benchmarks.class_folders import ClassFolders, relabel
from unseen.data.benchmarks.image_sets import OFFICE_HOME
from unseen.data.dataset import DataSet
from unseen.data.download import Acquisition
from unseen.data.images.folders import load_scan
from unseen.data.images.listing import DEFAULT_IMAGE_SIZE
from unseen.data.images.scan import FolderScan, ImageFile
from unseen.data.sources import SOURCES, DataRequest, Source, require_data_root

COMMON_CLASSES = {
    "Backpack": ("Backpack", "back_pack", "backpack", "003.backpack"),
    "Bike": ("Bike", "bike", "touring-bike", "224.touring-bike"),
    "Calculator": ("Calculator", "calculator", "027.calculator"),
    "Keyboard": ("Keyboard", "keyboard", "computer-keyboard", "045.computer-keyboard"),
    "Laptop": ("Laptop", "laptop_computer", "laptop", "laptop-101", "127.laptop-101"),
    "Monitor": ("Monitor", "monitor", "computer-monitor", "046.computer-monitor"),
    "Mouse": ("Mouse", "mouse", "computer-mouse", "047.computer-mouse"),
    "Mug": ("Mug", "mug", "coffee-mug", "041.coffee-mug"),
}
"""The name in Office-Home -> the names in Office-Home, in Office-31 and in Caltech-256."""

OFFICE_CALTECH = ClassFolders(
    name="office-caltech-home",
    places=("office-caltech", "office_caltech", "office_caltech_10", "office_caltech_dataset"),
    domains={
        "Amazon": ("amazon", "Amazon"),
        "Caltech": ("caltech", "Caltech", "caltech10", "256_ObjectCategories"),
        "Webcam": ("webcam", "Webcam"),
    },
    classes=COMMON_CLASSES,
    parts=("images",),
    others=True,
    needs="Office-Caltech (amazon, caltech and webcam with ten classes each) as "
    "office-caltech/DOMAIN/CLASS/*.jpg",
)
_NEEDS = f"{OFFICE_HOME.needs}, and {OFFICE_CALTECH.needs}"


def load_office_caltech_home(request: DataRequest) -> DataSet:
    """Load the common classes of both sets as one set of seven domains."""
    root = require_data_root(request, needs=_NEEDS)
    home = _below(root, OFFICE_HOME.scan(OFFICE_HOME.find(root)))
    office = _below(root, OFFICE_CALTECH.scan(OFFICE_CALTECH.find(root)))
    domains = {name: (name,) for name in (*OFFICE_CALTECH.domains, *OFFICE_HOME.domains)}
    files = relabel((*office, *home), domains=domains, classes=COMMON_CLASSES)
    return replace(load_scan(FolderScan(root, files), request), name="office-caltech-home")


def _below(root: Path, scan: FolderScan) -> list[ImageFile]:
    """Name the files relative to the data root, since two folders are read together."""
    place = scan.folder.relative_to(root).as_posix()
    return [replace(file, name=f"{place}/{file.name}") for file in scan.files]


SOURCES.register("office-caltech-home")(
    Source(
        load=load_office_caltech_home,
        summary="the 8 classes that Office-Caltech and Office-Home share, 7 domains (CSAC), RGB, "
        f"{DEFAULT_IMAGE_SIZE} px by default",
        domains=", ".join((*OFFICE_CALTECH.domains, *OFFICE_HOME.domains)),
        acquisition=Acquisition(
            licence="Office-Home a fair use notice on its page, Office-Caltech none stated",
            where="www.hemanthdv.org/officeHomeDataset.html (Office-Home), "
            "people.eecs.berkeley.edu/~jhoffman/domainadapt (Office), data.caltech.edu (Caltech-256)",
            put=_NEEDS,
        ),
        present=lambda root: (*OFFICE_CALTECH.present(root), *OFFICE_HOME.present(root)),
    )
)
