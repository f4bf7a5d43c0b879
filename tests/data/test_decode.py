"""Every kind of image file comes out with the right pixel values, and broken ones are refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data.images.decode import UnreadableImageError, decode_image, inspect_image, map_in_threads

SIDE = 8


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def noise(height: int = 64, width: int = 64) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_a_picture_of_the_right_size_keeps_its_pixels(tmp_path: Path) -> None:
    image = noise(SIDE, SIDE)
    decoded = decode_image(save(tmp_path / "a.png", image), SIDE)
    assert decoded.shape == (SIDE, SIDE, 3)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, np.asarray(image))


def test_the_whole_picture_is_averaged_down_not_cropped_or_picked(tmp_path: Path) -> None:
    wide = np.zeros((64, 128, 3), np.uint8)
    wide[:, 64:] = 255
    wide[:, ::2] ^= 40
    decoded = decode_image(save(tmp_path / "a.png", Image.fromarray(wide)), SIDE)
    assert np.ptp(decoded[:, :3].astype(int)) <= 1
    assert abs(int(decoded[0, 0, 0]) - 20) <= 1
    assert abs(int(decoded[0, -1, 0]) - 235) <= 1


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".gif", ".tif", ".webp"])
def test_grey_becomes_three_equal_channels(tmp_path: Path, suffix: str) -> None:
    grey = Image.new("L", (20, 30), 77)
    decoded = decode_image(save(tmp_path / f"a{suffix}", grey), SIDE)
    assert np.abs(decoded.astype(int) - 77).max() <= 2


def test_black_and_white(tmp_path: Path) -> None:
    half = Image.new("1", (SIDE, SIDE), 0)
    half.paste(1, (0, 0, SIDE // 2, SIDE))
    decoded = decode_image(save(tmp_path / "a.png", half), SIDE)
    assert (decoded[:, : SIDE // 2] == 255).all()
    assert (decoded[:, SIDE // 2 :] == 0).all()


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    levels = np.tile(np.array([0, 257, 1000, 25700, 32768, 51400, 65278, 65535], np.uint16), (SIDE, 1))
    path = save(tmp_path / f"a{suffix}", Image.fromarray(levels))
    decoded = decode_image(path, SIDE)
    np.testing.assert_array_equal(decoded[0, :, 0], [0, 1, 4, 100, 128, 200, 254, 255])
    assert "16-bit" in inspect_image(path, 8)[0]


def test_float_pictures_on_both_usual_scales(tmp_path: Path) -> None:
    unit = np.full((SIDE, SIDE), 0.5, np.float32)
    unit[0, 0] = 1.0
    for name, values in (("unit.tif", unit), ("bytes.tif", unit * 255)):
        decoded = decode_image(save(tmp_path / name, Image.fromarray(values)), SIDE)
        assert decoded[0, 0, 0] == 255
        assert abs(int(decoded[4, 4, 0]) - 128) <= 1


@pytest.mark.parametrize("bad", [np.nan, -3.0, 1e9])
def test_float_values_of_no_known_scale_are_refused(tmp_path: Path, bad: float) -> None:
    values = np.full((SIDE, SIDE), 0.5, np.float32)
    values[2, 2] = bad
    path = save(tmp_path / "a.tif", Image.fromarray(values))
    with pytest.raises(UnreadableImageError, match="grey values"):
        decode_image(path, SIDE)
    with pytest.raises(UnreadableImageError, match="grey values"):
        inspect_image(path, 8)


def test_palette_colours_and_transparency_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (SIDE, SIDE), 1)
    image.putpalette([9, 9, 9, 200, 30, 40])
    image.paste(0, (0, 0, SIDE, SIDE // 2))
    opaque = decode_image(save(tmp_path / "a.png", image), SIDE)
    assert opaque[-1, 0].tolist() == [200, 30, 40]
    assert opaque[0, 0].tolist() == [9, 9, 9]
    clear = save(tmp_path / "b.png", image, transparency=0)
    assert decode_image(clear, SIDE)[0, 0].tolist() == [255, 255, 255]
    assert decode_image(clear, SIDE)[-1, 0].tolist() == [200, 30, 40]
    assert "transparent" in inspect_image(clear, 8)[0]


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    half = save(tmp_path / "a.png", Image.new("RGBA", (SIDE, SIDE), (100, 0, 0, 128)))
    assert np.abs(decode_image(half, SIDE)[0, 0].astype(int) - [177, 127, 127]).max() <= 1


def test_cmyk(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.new("CMYK", (40, 40), (255, 0, 0, 0)), quality=95)
    assert np.abs(decode_image(path, SIDE)[0, 0].astype(int) - [0, 255, 255]).max() <= 3
    assert "CMYK" in inspect_image(path, 8)[0]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_exif_rotation_is_undone(tmp_path: Path, mode: str) -> None:
    upright = Image.new(mode, (48, 48), 0)
    upright.paste("white", (0, 0, 48, 24))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    path = save(tmp_path / "a.jpg", lying, exif=exif, quality=95)
    decoded = decode_image(path, SIDE)
    assert decoded[0].min() > 240
    assert decoded[-1].max() < 15
    assert "EXIF" in inspect_image(path, 8)[0]


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (SIDE, SIDE), "red"), Image.new("RGB", (SIDE, SIDE), "blue")
    path = save(tmp_path / "a.gif", first, save_all=True, append_images=[second])
    assert decode_image(path, SIDE)[0, 0].tolist() == [255, 0, 0]
    assert "several frames" in inspect_image(path, 8)[0]


def test_a_large_jpeg_reduced_while_decoding_looks_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 640).astype(np.uint8)
    image = Image.fromarray(np.stack([np.tile(ramp, (480, 1))] * 3, axis=2))
    large = decode_image(save(tmp_path / "a.jpg", image, quality=95), 16)
    exact = decode_image(save(tmp_path / "a.png", image), 16)
    assert np.abs(large.astype(int) - exact.astype(int)).max() <= 4


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp", ".tif", ".webp"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a{suffix}", noise())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableImageError):
        decode_image(path, SIDE)
    with pytest.raises(UnreadableImageError):
        inspect_image(path, 8)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    text, empty = tmp_path / "a.jpg", tmp_path / "b.jpg"
    text.write_text("hello")
    empty.touch()
    for path in (text, empty):
        with pytest.raises(UnreadableImageError, match="not an image"):
            decode_image(path, SIDE)
    with pytest.raises(UnreadableImageError, match="No such file"):
        decode_image(tmp_path / "c.jpg", SIDE)


def test_a_picture_too_large_to_decode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", noise(64, 64))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(UnreadableImageError, match="64 x 64"):
        decode_image(path, SIDE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64)
    with pytest.raises(UnreadableImageError, match="pixels"):
        decode_image(path, SIDE)


def test_an_ordinary_picture_is_not_unusual(tmp_path: Path) -> None:
    assert inspect_image(save(tmp_path / "a.jpg", noise()), 8)[0] == ""


def test_parallel_work_keeps_the_order() -> None:
    items = list(range(1300))
    assert list(map_in_threads(lambda item: item * 2, items)) == [item * 2 for item in items]
