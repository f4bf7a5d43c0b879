"""Bad input gets one line and an exit code, no traceback, and costs nothing that was there before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

TRAIN = ("train", "rotated-digits", "--hold-out", "75", "--rounds", "1", "--out", "new")


@pytest.fixture
def photos(tmp_path):
    """Three domains of two classes, eight noisy images each."""
    generator = np.random.default_rng(0)
    for domain in ("north", "south", "west"):
        for label, level in (("cat", 60), ("dog", 180)):
            folder = tmp_path / "photos" / domain / label
            folder.mkdir(parents=True)
            for number in range(8):
                pixels = generator.integers(level - 50, level + 50, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path / "photos"


FOLDER = ("--hold-out", "west", "--rounds", "1", "--batch-size", "4", "--image-size", "16", "--out", "new")


def _refused(answer, code, *words):
    assert answer.code == code, (answer.code, answer.err)
    assert "Traceback" not in answer.err and answer.out == ""
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, answer.err
    for word in words:
        assert word in answer.err, answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("train", "no/such/folder", "--hold-out", "a"), 1, ("no such folder", "no/such/folder")),
        (("train", "rotated-digit", "--hold-out", "75"), 2, ("'rotated-digits'",)),
        (("train", "rotated-digits", "--hold-out", "77"), 2, ("'75'",)),
        (("train", "rotated-digits"), 2, ("--hold-out",)),
        (("train",), 2, ("unseen train DATA",)),
        ((*TRAIN, "--method", "fedag"), 2, ("'fedavg'",)),
        ((*TRAIN, "--model", "mnist-cn"), 2, ("'mnist-cnn'",)),
        ((*TRAIN, "--set", "weightin=uniform"), 2, ("'weighting'",)),
        ((*TRAIN, "--set", "weighting=unifor"), 2, ("'uniform'",)),
        ((*TRAIN, "--set", "weighting"), 2, ("KEY=VALUE",)),
        ((*TRAIN, "--selection", "orakel"), 2, ("'oracle'",)),
        ((*TRAIN, "--partition", "dirichle"), 2, ("'dirichlet'",)),
        ((*TRAIN, "--augment", "standart"), 2, ("'standard'",)),
        ((*TRAIN, "--rounds", "0"), 2, ("--rounds", "at least 1")),
        ((*TRAIN, "--batch-size", "100000"), 2, ("100000", "--batch-size")),
        ((*TRAIN, "--batch-size", "0"), 2, ("at least 1",)),
        ((*TRAIN, "--lr", "-1"), 2, ("above 0",)),
        ((*TRAIN, "--fraction", "1.5"), 2, ("--fraction",)),
        ((*TRAIN, "--image-size", "1"), 2, ("too small",)),
        ((*TRAIN, "--validation", "0.7", "--test", "0.4"), 2, ("0.7",)),
        ((*TRAIN, "--clients-per-domain", "100000"), 2, ("client",)),
        ((*TRAIN, "--device", "tpu"), 2, ("'tpu'",)),
        ((*TRAIN, "--weights", "missing.safetensors"), 1, ("missing.safetensors",)),
        (("train", "--resume", "--out", "nowhere"), 2, ("nowhere", "no run")),
    ],
)
def test_wrong_options(unseen, tmp_path, arguments, code, words):
    _refused(unseen(*arguments), code, *words)
    assert not (tmp_path / "new/config.toml").exists()


def test_an_output_folder_with_another_run_stays_as_it_is(unseen, tmp_path):
    assert unseen(*TRAIN, "--json").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    _refused(unseen(*TRAIN), 2, "finished run", "--resume")
    _refused(unseen(*TRAIN, "--seed", "5", "--resume"), 2, "another run", "seed: 0 there, 5 now")
    after = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert before == after


def test_one_domain_only(unseen, photos):
    for other in ("south", "west"):
        (photos / other).rename(photos.parent / other)
    _refused(unseen("train", photos, "--hold-out", "north", "--out", "new"), 1, "one domain")


@pytest.mark.parametrize("content", [b"this is a text file", None], ids=["text", "truncated"])
def test_unreadable_images_are_named(unseen, photos, content):
    victim = photos / "north/cat/0.jpg"
    victim.write_bytes(victim.read_bytes()[:300] if content is None else content)
    _refused(unseen("train", photos, *FOLDER), 1, "0.jpg", "--skip-unreadable", "unseen data check")
    assert unseen("train", photos, *FOLDER, "--skip-unreadable", "--json").code == 0


def test_odd_images_are_read(unseen, photos):
    pixels = np.full((20, 24), 120, dtype=np.uint8)
    Image.fromarray(pixels).save(photos / "north/cat/grey.png")
    Image.fromarray(pixels).convert("P").save(photos / "north/cat/palette.png")
    Image.fromarray(pixels).convert("CMYK").save(photos / "north/cat/cmyk.jpg")
    Image.fromarray(pixels.astype(np.uint16) * 257).save(photos / "north/cat/deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).convert("RGB").save(photos / "north/cat/turned.jpg", exif=exif)
    answer = unseen("train", photos, *FOLDER, "--json")
    assert answer.code == 0, answer.err


def test_an_empty_class_folder(unseen, photos):
    for path in (photos / "north/dog").iterdir():
        path.unlink()
    assert unseen("train", photos, *FOLDER, "--json").code == 0, "the class is there in another domain"
    for path in (photos / "south/dog").iterdir():
        path.unlink()
    _refused(unseen("train", photos, *FOLDER[:-1], "other"), 1, "dog")


def test_a_class_that_only_the_held_out_domain_has(unseen, photos):
    (photos / "west/cat").rename(photos / "west/bird")
    _refused(unseen("train", photos, *FOLDER), 1, "bird", "west")


def test_weights_of_another_architecture(unseen, tmp_path):
    save_file({"layer.weight": torch.zeros(3, 3)}, tmp_path / "other.safetensors")
    _refused(unseen(*TRAIN, "--weights", "other.safetensors"), 1, "other.safetensors", "mnist-cnn")


def test_tables(unseen, tmp_path):
    rows = [f"{'abc'[i % 3]},{i % 7},{i % 5 * 1.5},{'yes' if i % 2 else 'no'},{i * 0.37}" for i in range(120)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["site,x,y,label,price", *rows]) + "\n")
    run = ("train", table, "--hold-out", "c", "--rounds", "1", "--batch-size", "8")
    _refused(unseen(*run), 2, "domain", "--domain-column")
    _refused(unseen(*run, "--domain-column", "sit"), 2, "'site'")
    _refused(unseen(*run, "--domain-column", "site", "--target", "lable"), 2, "'label'", "--target")
    for target, task in (("label", "classification"), ("price", "regression")):
        answer = unseen(*run, "--domain-column", "site", "--target", target, "--out", task, "--json")
        assert answer.code == 0, answer.err
        assert f'"task": "{task}"' in answer.out
