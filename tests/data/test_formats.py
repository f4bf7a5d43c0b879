"""A data format, a partition, an augmentation or a model is added by one plugin file."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unseen.data import FORMATS, SOURCES, DataRequest, load_data
from unseen.data.formats import DataFormat, find_format
from unseen.errors import UsageError

PLUGIN = '''
"""Arrays in .npz files, clients by the parity of a sample, a mirrored row, a linear model."""

import numpy as np
from torch import nn

from unseen.data import FORMATS, DataFormat, from_arrays
from unseen.data.augment import AUGMENTATIONS
from unseen.federation.partition import PARTITIONS, Assignment, within_domains
from unseen.models import MODELS, ModelEntry, Network


@FORMATS.register("npz")
class NpzFormat(DataFormat):
    """Arrays inputs, targets and domains in one .npz file."""

    expects = "arrays (.npz)"

    def matches(self, path):
        return path.suffix == ".npz"

    def load(self, request):
        with np.load(request.path) as arrays:
            return from_arrays(arrays["inputs"], arrays["targets"], arrays["domains"], name=request.path.stem)


@PARTITIONS.register("parity")
@within_domains
def parity(request):
    """Two clients per domain: even and odd samples."""
    names = [f"{domain}-{kind}" for domain in request.splits for kind in ("even", "odd")]
    owners = {d: 2 * i + np.arange(len(s)) % 2 for i, (d, s) in enumerate(request.splits.items())}
    return Assignment(names, owners)


@AUGMENTATIONS.register("mirror")
def mirror(images, generator):
    """Mirror every image."""
    return images.flip(3)


class Linear(Network):
    def __init__(self, spec):
        super().__init__()
        self.head = nn.Linear(spec.input_shape[0], spec.outputs)

    def extract(self, inputs, *, taps=False):
        return inputs, ()


MODELS.register("one-layer")(ModelEntry(Linear, "one linear layer"))
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_plugin.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Three domains of two classes that one column tells apart."""
    path = tmp_path / "rows.npz"
    generator = np.random.default_rng(0)
    targets = np.arange(120) % 2
    inputs = generator.normal(size=(120, 3)) + 4 * targets[:, None]
    domains = np.repeat(["a", "b", "c"], 40)
    np.savez(path, inputs=inputs, targets=np.array(["no", "yes"])[targets], domains=domains)
    return path


def in_new_process(code: str, plugin: Path) -> str:
    """Run Python code with the plugin named; a registry of this process must not keep its entries."""
    environment = {**os.environ, "UNSEEN_PLUGINS": str(plugin)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plugin_file_is_enough_to_train_check_and_predict(plugin: Path, arrays: Path, tmp_path: Path):
    out = in_new_process(
        f"""
from unseen.cli.main import app
from typer.testing import CliRunner
from unseen.data import DataRequest
from unseen.data.sources import load_site
from unseen.serving import load_model, predict
from pathlib import Path

def call(*arguments):
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output

call("train", {str(arrays)!r}, "--hold-out", "c", "--partition", "parity", "--model", "one-layer",
     "--rounds", "1", "--batch-size", "4", "--out", {str(tmp_path / "run")!r})
call("data", "check", {str(arrays)!r})
print(len(load_site("b", DataRequest({str(arrays)!r})).targets))
saved = load_model({str(tmp_path / "run")!r})
predictions = predict(saved, Path({str(arrays)!r}), batch_size=50)
print(len(predictions), predictions[0].name, sorted({{p.label for p in predictions}} | {{"no", "yes"}}))
""",
        plugin,
    )
    assert out.splitlines()[-2:] == ["40", "120 1 ['no', 'yes']"]


def test_entries_of_a_plugin_are_listed_with_their_summaries(plugin: Path):
    out = in_new_process(
        """
from unseen.data import FORMATS
from unseen.data.augment import AUGMENTATIONS
from unseen.federation import PARTITIONS
from unseen.models import MODELS
print("npz" in FORMATS, PARTITIONS["parity"].__doc__, sep="|")
print(AUGMENTATIONS["mirror"].__doc__, MODELS["one-layer"].summary, sep="|")
""",
        plugin,
    )
    assert out.splitlines() == [
        "True|Two clients per domain: even and odd samples.",
        "Mirror every image.|one linear layer",
    ]


def test_every_format_says_what_it_takes():
    for name in FORMATS:
        assert issubclass(FORMATS[name], DataFormat)
        assert (FORMATS[name].__doc__ or "").strip()
        assert FORMATS[name].expects != DataFormat.expects


def test_the_image_folder_takes_any_folder_but_only_if_no_other_format_does(tmp_path: Path):
    found = find_format(tmp_path)
    assert found is not None
    assert found.contents == "images"
    assert all(
        FORMATS[name].priority > found.priority for name in FORMATS if FORMATS[name] is not type(found)
    )


def test_a_file_of_no_format_is_refused_with_what_would_be_taken(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("words")
    with pytest.raises(UsageError, match=r"unknown type; expected .* or a table"):
        load_data(DataRequest(str(path)))


def test_every_named_set_has_a_summary():
    assert all(SOURCES[name].summary for name in SOURCES)
