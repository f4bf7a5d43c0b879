"""The papers' image sets in class folders, on small made-up copies of their layouts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import DataRequest, DataSet, load_data
from unseen.data.benchmarks.image_sets import DIGITS_DG, OFFICE_HOME, PACS, TERRA_INCOGNITA, VLCS
from unseen.data.benchmarks.office_caltech_home import COMMON_CLASSES
from unseen.errors import UnseenError

OFFICE_31 = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor")
OFFICE_31 = (*OFFICE_31, "mouse", "mug", "projector", "ring_binder")
CALTECH_256 = ("003.backpack", "027.calculator", "041.coffee-mug", "045.computer-keyboard")
CALTECH_256 = (*CALTECH_256, "046.computer-monitor", "047.computer-mouse", "101.head-phones")
CALTECH_256 = (*CALTECH_256, "127.laptop-101", "224.touring-bike", "238.video-projector")


def load(name: str, root: Path) -> DataSet:
    return load_data(DataRequest(name, root=root, image_size=8))


def message(name: str, root: Path | None) -> str:
    with pytest.raises(UnseenError) as caught:
        load_data(DataRequest(name, root=root))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("layout", "place"),
    [(VLCS, "VLCS"), (VLCS, "vlcs"), (TERRA_INCOGNITA, "terra_incognita"), (OFFICE_HOME, "office_home")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_small_copy_of_the_release(layout, place, make_images, tmp_path):
    folders = tuple(names[0] for names in layout.domains.values())
    make_images(folders, tuple(layout.classes), count=1, folder=place, side=9)
    data = load(layout.name, tmp_path)
    assert data.name == layout.name
    assert data.domains == tuple(sorted(layout.domains))
    assert data.classes == tuple(sorted(layout.classes))
    assert data.inputs.shape == (len(folders) * len(layout.classes), 8, 8, 3)
    for number, domain in enumerate(layout.domains):
        rows = data.indices(domain)
        assert (data.inputs[rows, 4, 4, 0] == 40 * number + 20).all()
        assert len(set(data.targets[rows])) == len(layout.classes)


@pytest.mark.parametrize(
    ("layout", "classes"), [(VLCS, 5), (OFFICE_HOME, 65), (TERRA_INCOGNITA, 10), (PACS, 7)]
)
def test_the_classes_are_those_of_the_papers(layout, classes):
    assert len(layout.classes) == classes
    assert len(layout.domains) == 4


def test_folders_spelt_in_another_way(make_images, tmp_path):
    make_images(
        ("art", "clipart", "product", "real_world"), tuple(OFFICE_HOME.classes), count=1, folder="OfficeHome"
    )
    assert load("office-home", tmp_path).domains == ("Art", "Clipart", "Product", "RealWorld")


def test_digits_dg_reads_training_and_validation_parts_as_one(make_images, tmp_path):
    for domain in DIGITS_DG.domains:
        for count, part in ((2, "train"), (1, "val")):
            make_images((part,), tuple("0123456789"), count=count, folder=f"digits_dg/{domain}")
    data = load_data(DataRequest("digits-dg", root=tmp_path))
    assert data.input_shape == (3, 32, 32)
    assert data.domains == ("mnist", "mnist_m", "svhn", "syn")
    assert {tuple(counts.values()) for counts in data.class_counts().values()} == {(3,) * 10}
    assert "120 images; the release has 24000" in data.notes


def test_digits_dg_without_a_domain(make_images, tmp_path):
    for domain in ("mnist", "svhn", "syn"):
        make_images(("train",), tuple("0123456789"), count=1, folder=f"digits-dg/{domain}")
    assert "missing mnist_m" in message("digits-dg", tmp_path)


class TestOfficeCaltechHome:
    @pytest.fixture
    def root(self, make_images, tmp_path) -> Path:
        homes = tuple(names[0] for names in OFFICE_HOME.domains.values())
        make_images(homes, tuple(OFFICE_HOME.classes), count=1, folder="office-home")
        make_images(("amazon/images", "dslr/images"), OFFICE_31, count=2, folder="office-caltech")
        make_images(("webcam",), OFFICE_31, count=2, folder="office-caltech")
        make_images(("256_ObjectCategories",), CALTECH_256, count=2, folder="office-caltech")
        return tmp_path

    def test_seven_domains_of_the_common_classes(self, root):
        data = load("office-caltech-home", root)
        homes = ("Art", "Clipart", "Product", "RealWorld")
        assert data.domains == tuple(sorted(("Amazon", "Caltech", "Webcam", *homes)))
        assert data.classes == tuple(sorted(COMMON_CLASSES))
        assert len(data.classes) == 8
        counts = data.class_counts()
        assert all(set(row.values()) == {1 if domain in homes else 2} for domain, row in counts.items())

    def test_a_class_is_one_whatever_its_folder_is_called(self, root):
        for place, shade in (("office-home/Art/Mug", 201), ("office-caltech/amazon/images/mug", 202)):
            for path in (root / place).iterdir():
                Image.fromarray(np.full((9, 9, 3), shade, np.uint8)).save(path)
        for path in (root / "office-caltech/256_ObjectCategories/041.coffee-mug").iterdir():
            Image.fromarray(np.full((9, 9, 3), 203, np.uint8)).save(path)
        data = load("office-caltech-home", root)
        mugs = data.targets == data.classes.index("Mug")
        shades = {
            domain: set(data.inputs[data.indices(domain)][mugs[data.indices(domain)], 4, 4, 0])
            for domain in ("Art", "Amazon", "Caltech")
        }
        assert shades == {"Art": {201}, "Amazon": {202}, "Caltech": {203}}

    def test_what_is_common_is_what_both_have(self):
        assert set(COMMON_CLASSES) <= set(OFFICE_HOME.classes)
        assert not {"Headphones", "Projector"} & set(OFFICE_HOME.classes)

    def test_it_does_not_push_office_home_out_of_the_cache(self, root, image_cache):
        load("office-home", root)
        load("office-caltech-home", root)
        assert len(list(image_cache.glob("*.npy"))) == 2

    def test_either_half_missing_is_told(self, root, tmp_path):
        (root / "office-caltech").rename(root / "elsewhere")
        assert "Office-Caltech" in message("office-caltech-home", root)
        (root / "office-home").rename(root / "nowhere")
        assert "Office-Home" in message("office-caltech-home", root)


@pytest.mark.parametrize(
    "name", ["vlcs", "office-home", "office-caltech-home", "terra-incognita", "digits-dg"]
)
def test_what_to_do_without_files(name, tmp_path, monkeypatch):
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    folder = name.replace("caltech-home", "home")
    assert f"{folder}/" in message(name, tmp_path)
    without_root = message(name, None)
    assert "--data-root" in without_root
    assert f"{folder}/" in without_root


def test_a_strange_class_is_refused(make_images, tmp_path):
    make_images(tuple(VLCS.domains), (*VLCS.classes, "cow"), count=1, folder="VLCS")
    assert "extra cow" in message("vlcs", tmp_path)
