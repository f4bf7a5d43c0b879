"""Image sets of the papers, released as class folders: PACS, VLCS, Office-Home, TerraIncognita, Digits-DG.

Domains and classes are named like the folders of the usual releases; other spellings are accepted.
"""

from __future__ import annotations

from functools import partial

from unseen.data.benchmarks.class_folders import ClassFolders, Names, load_class_folders, photo_side_of
from unseen.data.download import Acquisition
from unseen.data.sources import SOURCES, Source


def same(*names: str) -> Names:
    """Map names to folders of the same name."""
    return {name: (name,) for name in names}


PACS = ClassFolders(
    name="pacs",
    places=("pacs", "PACS", "pacs/kfold", "PACS/kfold"),
    domains=same("art_painting", "cartoon", "photo", "sketch"),
    classes=same("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    needs="the PACS release (9991 images; search for 'PACS domain generalization dataset') as "
    "pacs/DOMAIN/CLASS/*.jpg with the domains art_painting, cartoon, photo, sketch",
    images=9991,
    side=227,
)
VLCS = ClassFolders(
    name="vlcs",
    places=("vlcs", "VLCS"),
    domains=same("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    classes=same("bird", "car", "chair", "dog", "person"),
    needs="VLCS as DomainBed lays it out (10729 images) as vlcs/DOMAIN/CLASS/*.jpg with the domains "
    "Caltech101, LabelMe, SUN09, VOC2007",
    images=10729,
)
OFFICE_HOME = ClassFolders(
    name="office-home",
    places=("office-home", "office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
    domains={
        "Art": ("Art", "art"),
        "Clipart": ("Clipart", "clipart"),
        "Product": ("Product", "product"),
        "RealWorld": ("Real World", "RealWorld", "Real_World", "real_world"),
    },
    classes=same(
        "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar",
        "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser",
        "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer",
        "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse",
        "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer",
        "Push_Pin", "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers",
        "Soda", "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
    ),
    needs="Office-Home (15588 images, www.hemanthdv.org/officeHomeDataset.html) as "
    "office-home/DOMAIN/CLASS/*.jpg with the domains Art, Clipart, Product, Real World",
    images=15588,
)  # fmt: skip
TERRA_INCOGNITA = ClassFolders(
    name="terra-incognita",
    places=("terra-incognita", "terra_incognita"),
    domains=same("location_100", "location_38", "location_43", "location_46"),
    classes=same(
        "bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"
    ),
    needs="TerraIncognita as DomainBed lays it out (four locations of Caltech Camera Traps, "
    "lila.science/datasets/caltech-camera-traps) as terra-incognita/location_NUMBER/CLASS/*.jpg with the "
    "locations 38, 43, 46 and 100",
)  # fmt: skip
DIGITS_DG = ClassFolders(
    name="digits-dg",
    places=("digits-dg", "digits_dg"),
    domains=same("mnist", "mnist_m", "svhn", "syn"),
    classes=same(*"0123456789"),
    parts=("train", "val"),
    needs="Digits-DG (24000 images; see DATASETS.md of github.com/KaiyangZhou/Dassl.pytorch) as "
    "digits-dg/DOMAIN/train/DIGIT/*.jpg and digits-dg/DOMAIN/val/DIGIT/*.jpg with the domains "
    "mnist, mnist_m, svhn, syn",
    images=24000,
    size=32,
)


NONE_STATED = "none stated"
DOMAINBED = "github.com/facebookresearch/DomainBed (domainbed/scripts/download.py, from Google Drive)"


def register(layout: ClassFolders, description: str, *, licence: str, where: str) -> None:
    """Register a set."""
    SOURCES.register(layout.name)(
        Source(
            load=partial(load_class_folders, layout),
            summary=f"{description}, RGB, {layout.size} px by default",
            domains=", ".join(layout.domains),
            acquisition=Acquisition(licence=licence, where=where, put=layout.needs),
            present=layout.present,
            photo_side=partial(photo_side_of, layout),
        )
    )


register(
    PACS,
    "PACS: photographs, paintings, cartoons, sketches, 9991 images, 7 classes",
    licence=NONE_STATED,
    where=f"dali-dl.github.io/project_iccv2017.html, or {DOMAINBED}",
)
register(
    VLCS,
    "VLCS: photographs of four collections, 10729 images, 5 classes",
    licence="none stated for the whole; the photographs are those of four collections",
    where=DOMAINBED,
)
register(
    OFFICE_HOME,
    "Office-Home: objects of office and home, 15588 images, 65 classes",
    licence="a fair use notice, on its page",
    where=f"www.hemanthdv.org/officeHomeDataset.html, or {DOMAINBED}",
)
register(
    TERRA_INCOGNITA,
    "TerraIncognita: animals at four camera traps, about 24800 images, 10 classes",
    licence="Community Data License Agreement, permissive",
    where="lila.science/datasets/caltech-camera-traps; github.com/facebookresearch/DomainBed "
    "(domainbed/scripts/download.py) downloads it and sorts it into folders",
)
register(
    DIGITS_DG,
    "Digits-DG: 600 of each digit from MNIST, MNIST-M, SVHN and SYN",
    licence=NONE_STATED,
    where="github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md, from Google Drive)",
)
