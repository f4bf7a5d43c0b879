"""The named sets: on made-up copies of their layout, and on the real files where they are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from unseen.data import SOURCES, DataRequest, list_sources, load_data
from unseen.data.benchmarks.digits import resize_images, rotate_images, to_rgb
from unseen.data.benchmarks.image_sets import PACS
from unseen.errors import UnseenError, UsageError
from unseen.federation import SplitFractions, split_domain

PACS_DOMAINS, PACS_CLASSES = tuple(PACS.domains), tuple(PACS.classes)
REAL = os.environ.get("UNSEEN_DATA")
real_data = pytest.mark.skipif(not REAL, reason="UNSEEN_DATA does not point to the data sets")
ANGLES = ("0", "15", "30", "45", "60", "75")


def message(source: str, root: Path | None) -> str:
    with pytest.raises(UnseenError) as caught:
        load_data(DataRequest(source, root=root))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_digits(
    root: Path, name: str, shape: tuple[int, ...], *, train: int = 1100, test: int = 100
) -> Path:
    """Write a made-up collection whose every picture is a blot of the brightness of its number."""
    path = root / "digits" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        values = (np.arange(count) % 200 + 50).astype(np.uint8).reshape(-1, *[1] * len(shape))
        arrays[f"{part}_x"] = np.broadcast_to(values, (count, *shape))
        arrays[f"{part}_y"] = (np.arange(count) % 10).astype(np.uint8)
    np.savez(path, **arrays)
    return path


class TestPixels:
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 9, 2), dtype=np.uint8)

    def test_no_turn_is_the_identity(self) -> None:
        np.testing.assert_array_equal(rotate_images(self.images, 0), self.images)
        np.testing.assert_array_equal(rotate_images(self.images, 360), self.images)

    @pytest.mark.parametrize("quarters", [1, 2, 3])
    @pytest.mark.parametrize("side", [8, 9])
    def test_quarter_turns_are_clockwise(self, quarters: int, side: int) -> None:
        images = self.images[:, :side, :side]
        expected = np.rot90(images, k=-quarters, axes=(1, 2))
        np.testing.assert_array_equal(rotate_images(images, 90 * quarters), expected)

    def test_a_turn_agrees_with_pillow(self) -> None:
        smooth = resize_images(self.images[..., :1], 28)
        ours = rotate_images(smooth, 30)[..., 0]
        theirs = [
            np.asarray(Image.fromarray(image[..., 0]).rotate(-30, Image.Resampling.BILINEAR))
            for image in smooth
        ]
        inside = (slice(None), slice(6, 22), slice(6, 22))
        assert np.abs(ours[inside].astype(int) - np.stack(theirs)[inside].astype(int)).max() <= 2

    def test_outside_is_black(self) -> None:
        turned = rotate_images(np.full((1, 20, 20, 1), 255, np.uint8), 45)
        assert turned[0, 0, 0, 0] == 0
        assert turned[0, 10, 10, 0] == 255

    @given(degrees=st.floats(-180, 180))
    def test_back_and_forth_returns_the_middle(self, degrees: float) -> None:
        ramp = np.linspace(0, 200, 32)
        image = (ramp[:, None] / 2 + ramp[None, :] / 2).astype(np.uint8)[None, :, :, None]
        back = rotate_images(rotate_images(image, degrees), -degrees)
        middle = (0, slice(12, 20), slice(12, 20), 0)
        assert np.abs(back[middle].astype(int) - image[middle].astype(int)).max() <= 2

    def test_more_images_than_a_chunk(self) -> None:
        many = np.random.default_rng(0).integers(0, 256, (5000, 4, 4, 1), dtype=np.uint8)
        np.testing.assert_array_equal(rotate_images(many, 90), np.rot90(many, k=-1, axes=(1, 2)))

    def test_resizing_averages(self) -> None:
        ours = resize_images(self.images[..., :1], 4)[..., 0]
        theirs = [
            np.asarray(Image.fromarray(image[..., 0]).resize((4, 4), Image.Resampling.BILINEAR))
            for image in self.images
        ]
        assert np.abs(ours.astype(int) - np.stack(theirs).astype(int)).max() <= 1
        assert resize_images(self.images, 9) is self.images

    def test_grey_to_colour(self) -> None:
        assert to_rgb(self.images[..., 0]).shape == (5, 9, 9, 3)
        np.testing.assert_array_equal(to_rgb(self.images[..., :1])[..., 2], self.images[..., 0])


class TestRotatedDigits:
    def test_shape_and_domains(self) -> None:
        data = load_data(DataRequest("rotated-digits"))
        assert data.inputs.shape == (1797, 16, 16, 1)
        assert data.domains == ANGLES
        assert data.inputs.max() == 255
        assert not SOURCES["rotated-digits"].needs_files
        per_domain = np.array([list(counts.values()) for counts in data.class_counts().values()])
        assert np.ptp(per_domain, axis=0).max() <= 2

    def test_every_picture_is_in_one_domain_only_and_turned(self) -> None:
        from sklearn.datasets import load_digits

        data = load_data(DataRequest("rotated-digits"))
        bundled = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)[..., None]
        originals = resize_images(bundled, 12, smooth=True).reshape(1797, -1).astype(np.float32)
        found = []
        for angle in data.domains:
            upright = rotate_images(data.inputs[data.indices(angle)], -int(angle))
            middle = upright[:, 2:14, 2:14].reshape(len(upright), -1).astype(np.float32)
            near = (originals**2).sum(axis=1) - 2 * middle @ originals.T
            found.append(near.argmin(axis=1))
        everyone = np.concatenate(found)
        assert (load_digits().target[everyone] == data.targets).all()
        assert len(set(everyone)) >= 0.99 * 1797

    def test_it_does_not_depend_on_anything_and_honours_the_size(self) -> None:
        assert (
            load_data(DataRequest("rotated-digits")).fingerprint
            == load_data(DataRequest("rotated-digits", root=Path("nowhere"))).fingerprint
        )
        assert load_data(DataRequest("rotated-digits", image_size=28)).input_shape == (1, 28, 28)


class TestRotatedMnist:
    def test_the_csac_variant_shows_the_same_images_at_every_angle(self, tmp_path: Path) -> None:
        write_digits(tmp_path, "mnist", (28, 28))
        data = load_data(DataRequest("rotated-mnist", root=tmp_path))
        assert data.inputs.shape == (6000, 28, 28, 1)
        assert all(set(counts.values()) == {100} for counts in data.class_counts().values())
        centres = data.inputs[:, 14, 14, 0].reshape(6, 1000)
        assert np.abs(centres.astype(int) - centres[0].astype(int)).max() <= 1
        assert "same images" in data.notes[0]

    @pytest.mark.parametrize(
        ("source", "side"), [("rotated-mnist", "right"), ("rotated-mnist-disjoint", "left")]
    )
    def test_each_variant_turns_as_its_paper_does(self, tmp_path: Path, source: str, side: str) -> None:
        path = write_digits(tmp_path, "mnist", (28, 28))
        with np.load(path) as arrays:
            changed = {key: arrays[key].copy() for key in arrays}
        for part in ("train_x", "test_x"):
            changed[part][:] = 0
            changed[part][:, 2:6, 12:16] = 255
        np.savez(path, **changed)
        data = load_data(DataRequest(source, root=tmp_path))
        image = data.inputs[data.indices("75")[0], :, :, 0].astype(int)
        assert (image[:, 14:].sum() > image[:, :14].sum()) == (side == "right")

    @pytest.mark.parametrize("source", ["rotated-mnist", "rotated-mnist-disjoint", "rotated-digits"])
    def test_direction_and_interpolation_are_settings(self, tmp_path: Path, source: str) -> None:
        write_digits(tmp_path, "mnist", (28, 28))

        def load(**settings: str):
            return load_data(DataRequest(source, root=tmp_path, settings=settings))

        usual, one, other = load(), load(direction="clockwise"), load(direction="counter-clockwise")
        assert usual.fingerprint in (one.fingerprint, other.fingerprint)
        assert one.fingerprint != other.fingerprint
        rows = one.indices("75")
        upright = one.inputs[one.indices("0")]
        np.testing.assert_array_equal(upright, other.inputs[other.indices("0")])
        if source == "rotated-mnist":
            np.testing.assert_array_equal(other.inputs[rows], rotate_images(upright, -75))
            np.testing.assert_array_equal(one.inputs[rows], rotate_images(upright, 75))
        nearest = load(interpolation="nearest")
        if source == "rotated-mnist":
            values = {0, *np.unique(upright).tolist()}
            assert set(np.unique(nearest.inputs).tolist()) <= values
            assert not set(np.unique(usual.inputs).tolist()) <= values
        assert nearest.fingerprint != usual.fingerprint != load(interpolation="bicubic").fingerprint

    def test_a_wrong_setting_is_refused_with_the_nearest(self, tmp_path: Path) -> None:
        write_digits(tmp_path, "mnist", (28, 28))
        for settings, expected in (
            ({"direction": "clockwise "}, "unknown value of setting 'direction'"),
            ({"directon": "clockwise"}, "Did you mean 'direction'"),
        ):
            with pytest.raises(UsageError, match=expected):
                load_data(DataRequest("rotated-mnist", root=tmp_path, settings=settings))
        with pytest.raises(UsageError, match="--set-data is for named data sets"):
            load_data(DataRequest(str(tmp_path), settings={"direction": "clockwise"}))

    def test_groups_are_the_original_images(self, tmp_path: Path) -> None:
        path = write_digits(tmp_path, "mnist", (28, 28))
        with np.load(path) as arrays:
            centres = np.concatenate([arrays["train_x"], arrays["test_x"]])[:, 14, 14]
        for source in ("rotated-mnist", "rotated-mnist-disjoint"):
            data = load_data(DataRequest(source, root=tmp_path))
            off = centres[data.split_group_of].astype(int) - data.inputs[:, 14, 14, 0]
            assert np.abs(off).max() <= 1
            assert data.repeats_groups == SOURCES[source].grouped == (source == "rotated-mnist")
        digits = load_data(DataRequest("rotated-digits"))
        assert sorted(digits.split_group_of) == list(range(1797))
        assert not SOURCES["rotated-digits"].grouped

    def test_too_few_pictures_of_a_digit(self, tmp_path: Path) -> None:
        write_digits(tmp_path, "mnist", (28, 28), train=500)
        assert "100 of each digit" in message("rotated-mnist", tmp_path)

    def test_the_domainbed_variant_uses_every_picture_once(self, tmp_path: Path) -> None:
        path = write_digits(tmp_path, "mnist", (28, 28))
        data = load_data(DataRequest("rotated-mnist-disjoint", root=tmp_path))
        assert len(data) == 1200
        assert np.bincount(data.domain_of).tolist() == [200] * 6
        with np.load(path) as arrays:
            whole = np.concatenate([arrays["train_x"], arrays["test_x"]])[:, 14, 14]
        np.testing.assert_array_equal(np.sort(data.inputs[:, 14, 14, 0]), np.sort(whole))

    def test_the_root_may_come_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_digits(tmp_path, "mnist", (28, 28))
        monkeypatch.setenv("UNSEEN_DATA", str(tmp_path))
        assert len(load_data(DataRequest("rotated-mnist"))) == 6000

    def test_what_to_do_without_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("UNSEEN_DATA", raising=False)
        assert "digits/mnist.npz" in message("rotated-mnist", tmp_path)
        without_root = message("rotated-mnist", None)
        assert "--data-root" in without_root
        assert "digits/mnist.npz" in without_root


class TestDigits:
    def test_the_collections_that_are_there(self, tmp_path: Path) -> None:
        write_digits(tmp_path, "mnist", (28, 28), train=30, test=10)
        write_digits(tmp_path, "usps", (16, 16), train=20, test=10)
        write_digits(tmp_path, "mnistm", (32, 32, 3), train=10, test=10)
        data = load_data(DataRequest("digits", root=tmp_path))
        assert data.domains == ("mnist", "mnistm", "usps")
        assert data.inputs.shape == (90, 32, 32, 3)
        assert np.bincount(data.domain_of).tolist() == [40, 20, 30]
        assert "svhn, syn" in data.notes[0]
        first = data.indices("usps")[:3]
        assert data.inputs[first, 0, 0].tolist() == [[50] * 3, [51] * 3, [52] * 3]
        assert data.targets[first].tolist() == [0, 1, 2]

    def test_five_domains_with_the_two_of_chars74k(self, tmp_path: Path) -> None:
        for name, shape in (("mnist", (28, 28)), ("usps", (16, 16)), ("mnistm", (32, 32, 3))):
            write_digits(tmp_path, name, shape, train=30, test=10)
        assert "font, scene missing" in message("digits-chars74k", tmp_path)
        before = load_data(DataRequest("digits", root=tmp_path))
        write_digits(tmp_path, "font", (32, 32), train=40, test=10)
        write_digits(tmp_path, "scene", (32, 32, 3), train=10, test=10)
        data = load_data(DataRequest("digits-chars74k", root=tmp_path))
        assert data.domains == ("mnist", "mnistm", "usps", "font", "scene")
        assert data.inputs.shape == (190, 32, 32, 3)
        assert np.bincount(data.domain_of).tolist() == [40, 40, 40, 50, 20]
        assert data.name == "digits-chars74k"
        keys, fonts = data.split_group_of, data.indices("font")
        assert keys is not None and len(np.unique(keys)) < len(keys)
        assert len(np.unique(np.delete(keys, fonts))) == len(keys) - len(fonts)
        pairs = [(tuple(data.inputs[place].ravel()), keys[place]) for place in fonts]
        assert len({image for image, _ in pairs}) == len(set(pairs)) == len({key for _, key in pairs})
        few = load_data(DataRequest("digits-chars74k", root=tmp_path, samples_per_domain=30))
        assert {sum(row.values()) for row in few.class_counts().values()} == {30, 20}
        assert all(len(set(row.values())) == 1 for row in few.class_counts().values())
        after = load_data(DataRequest("digits", root=tmp_path))
        assert after.domains == before.domains, "the set of three stays as it was"
        assert after.fingerprint == before.fingerprint

    def test_the_svhn_release_calls_zero_ten(self, tmp_path: Path) -> None:
        from scipy.io import savemat

        write_digits(tmp_path, "mnist", (28, 28), train=30, test=10)
        (tmp_path / "digits" / "svhn").mkdir()
        labels = np.array([[1], [10], [9], [10]], np.uint8)
        for part in ("train", "test"):
            pictures = np.zeros((32, 32, 3, 4), np.uint8)
            pictures[:, :, 0] = np.arange(4)
            savemat(tmp_path / "digits" / "svhn" / f"{part}_32x32.mat", {"X": pictures, "y": labels})
        data = load_data(DataRequest("digits", root=tmp_path))
        rows = data.indices("svhn")
        assert data.targets[rows].tolist() == [1, 0, 9, 0] * 2
        assert data.inputs[rows, 5, 5].tolist() == [[number, 0, 0] for number in range(4)] * 2

    def test_too_few_collections_say_what_to_put_where(self, tmp_path: Path) -> None:
        for found in ("none", "only usps"):
            text = message("digits", tmp_path)
            assert f"found {found} in {tmp_path / 'digits'}" in text
            assert "digits/NAME.npz" in text
            assert "train_32x32.mat" in text
            write_digits(tmp_path, "usps", (16, 16), train=10, test=10)

    @pytest.mark.parametrize(
        ("arrays", "expected"),
        [
            ({"train_x": np.zeros((2, 8, 8), np.uint8)}, "expected the arrays"),
            ({"y": [0, 11]}, "label 0..9"),
            ({"y": [0]}, "label 0..9"),
            ({"x": np.zeros((2, 8, 8), np.float32)}, "expected uint8"),
            ({"x": np.zeros((2, 64), np.uint8)}, "expected uint8"),
        ],
    )
    def test_files_of_another_form_are_refused(self, tmp_path: Path, arrays: dict, expected: str) -> None:
        path = write_digits(tmp_path, "mnist", (28, 28), train=30, test=10)
        write_digits(tmp_path, "usps", (16, 16), train=10, test=10)
        if "train_x" not in arrays:
            pictures, labels = arrays.get("x", np.zeros((2, 8, 8), np.uint8)), arrays.get("y", [1, 2])
            arrays = {f"{part}_x": pictures for part in ("train", "test")}
            arrays |= {f"{part}_y": np.array(labels, np.uint8) for part in ("train", "test")}
        np.savez(path, **arrays)
        text = message("digits", tmp_path)
        assert expected in text
        assert str(path) in text

    def test_a_broken_file_is_named(self, tmp_path: Path) -> None:
        path = write_digits(tmp_path, "mnist", (28, 28), train=30, test=10)
        write_digits(tmp_path, "usps", (16, 16), train=10, test=10)
        for content in (path.read_bytes()[:1000], b"", b"text"):
            path.write_bytes(content)
            assert str(path) in message("digits", tmp_path)


class TestPacs:
    @pytest.fixture(params=["pacs", "PACS/kfold"])
    def root(self, make_images, request: pytest.FixtureRequest) -> Path:
        folder = make_images(PACS_DOMAINS, PACS_CLASSES, count=1, folder=f"root/{request.param}")
        return folder.parents[request.param.count("/")]

    def test_a_small_copy(self, root: Path) -> None:
        data = load_data(DataRequest("pacs", root=root, image_size=8))
        assert data.name == "pacs"
        assert data.domains == PACS_DOMAINS
        assert data.classes == PACS_CLASSES
        assert data.input_shape == (3, 8, 8)
        notes = " ".join(data.notes)
        assert "to 8 px from 20 px" in notes
        assert "28 images" in notes

    def test_missing_and_strange_classes_are_named(self, make_images, tmp_path: Path) -> None:
        make_images(PACS_DOMAINS, (*PACS_CLASSES[1:], "zebra"), count=1, folder="pacs")
        text = message("pacs", tmp_path)
        assert "missing dog" in text
        assert "extra zebra" in text

    def test_a_missing_domain_is_named(self, make_images, tmp_path: Path) -> None:
        make_images(PACS_DOMAINS[:3], PACS_CLASSES, count=1, folder="pacs")
        assert "missing sketch" in message("pacs", tmp_path)

    def test_what_to_do_without_files(self, tmp_path: Path) -> None:
        text = message("pacs", tmp_path)
        assert "pacs/DOMAIN/CLASS" in text
        assert str(tmp_path) in text


@real_data
@pytest.mark.real_data
class TestRealFiles:
    def test_rotated_mnist(self) -> None:
        data = load_data(DataRequest("rotated-mnist", root=Path(REAL or "")))
        assert data.inputs.shape == (6000, 28, 28, 1)
        zero, quarter = data.inputs[data.indices("0")], data.inputs[data.indices("75")]
        back = rotate_images(quarter, -75).astype(float)
        assert np.abs(back - zero).mean() < 0.3 * np.abs(quarter.astype(float) - zero).mean()

    def test_rotated_mnist_disjoint(self) -> None:
        data = load_data(DataRequest("rotated-mnist-disjoint", root=Path(REAL or "")))
        assert np.bincount(data.domain_of).tolist() == [11667] * 4 + [11666] * 2

    def test_digits(self) -> None:
        data = load_data(DataRequest("digits", root=Path(REAL or ""), image_size=16))
        assert {"mnist", "usps"} <= set(data.domains)
        assert (np.bincount(data.targets) > 0).all()

    def test_digits_with_chars74k(self) -> None:
        root = Path(REAL or "")
        if len(SOURCES["digits-chars74k"].present_domains(root)) < 5:
            pytest.skip("UNSEEN_DATA lacks digits of Chars74K")
        data = load_data(DataRequest("digits-chars74k", root=root, image_size=16, samples_per_domain=400))
        assert data.class_counts() == {name: dict.fromkeys("0123456789", 40) for name in data.domains}
        assert data.split_group_of is not None
        fonts = data.indices("font")
        part = split_domain(data, "font", SplitFractions(0.1, 0.0, True), seed=0)
        shown = [{data.inputs[place].tobytes() for place in fonts[part == each]} for each in np.unique(part)]
        assert len(shown) == 2 and not shown[0] & shown[1]

    def test_the_groups_of_rotated_mnist_are_split_as_a_whole(self) -> None:
        data = load_data(DataRequest("rotated-mnist", root=Path(REAL or "")))
        for by_group in (False, True):
            parts = [
                split_domain(data, angle, SplitFractions(0.1, 0.0, by_group), seed=0)
                for angle in data.domains
            ]
            assert all((part == parts[0]).all() for part in parts) == by_group
        assert 60 <= np.count_nonzero(parts[0]) <= 140

    def test_pacs(self) -> None:
        data = load_data(DataRequest("pacs", root=Path(REAL or ""), image_size=16))
        counts = {domain: len(data.indices(domain)) for domain in data.domains}
        assert counts == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
        again = load_data(DataRequest("pacs", root=Path(REAL or ""), image_size=16))
        assert again.fingerprint == data.fingerprint


def test_what_is_there_is_told_without_reading_it(tmp_path):
    sources = dict(list_sources())
    assert sources["rotated-digits"].present_domains(None) == ("0", "15", "30", "45", "60", "75")
    assert sources["rotated-mnist"].present_domains(None) == ()
    for name, source in sources.items():
        if source.needs_files:
            assert source.present is not None, f"{name}: say which of its domains are there"
            assert source.present_domains(tmp_path) == ()
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "mnist.npz").touch()
    (tmp_path / "OfficeHome" / "Real World").mkdir(parents=True)
    (tmp_path / "office-caltech" / "amazon").mkdir(parents=True)
    assert sources["rotated-mnist"].present_domains(tmp_path) == ("0", "15", "30", "45", "60", "75")
    assert sources["digits"].present_domains(tmp_path) == ("mnist",)
    assert sources["office-home"].present_domains(tmp_path) == ("RealWorld",)
    assert sources["office-caltech-home"].present_domains(tmp_path) == ("Amazon", "RealWorld")
