"""Data formats: kinds of files and folders that data sets are loaded from; plugins can register more.

A plugin file adds a format with one class; `unseen train`, `unseen data check` and `unseen join` then accept
its files without any other change:

    @FORMATS.register("npz")
    class NpzFormat(DataFormat):
        '''Arrays inputs, targets and domains in one .npz file.'''

        expects = "arrays (.npz)"

        def matches(self, path):
            return path.suffix == ".npz"

        def load(self, request):
            with np.load(request.path) as arrays:
                return from_arrays(arrays["inputs"], arrays["targets"], arrays["domains"])
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from unseen.data.dataset import DataSet
from unseen.data.site_data import SiteSamples, select_site
from unseen.hparams import Settings
from unseen.registry import Registry

if TYPE_CHECKING:
    from unseen.data.sources import DataRequest
    from unseen.data.validate import DataCheck


GROUP_COLUMN, GROUP_PATTERN = "--group-column", "--group-pattern"


class DataFormat:
    """Base class of the formats; `matches` and `load` are required, the rest is optional.

    expects   what a user has to pass, for messages: "a table (.csv, .parquet)"
    contents  content of the files, which decides how a trained model reads them
    priority  the format that matches with the highest priority is used
    settings  what `--set-data` may set
    group_options  options that can name the groups of samples in such files
    """

    expects: ClassVar[str] = "a file of its kind"
    contents: ClassVar[Literal["images", "table", "arrays"]] = "arrays"
    priority: ClassVar[int] = 0
    settings: ClassVar[type[Settings]] = Settings
    group_options: ClassVar[tuple[str, ...]] = (GROUP_COLUMN, GROUP_PATTERN)

    @classmethod
    def settings_type(cls) -> type[Settings]:
        """Return the settings, for `unseen list formats NAME`."""
        return cls.settings

    def matches(self, path: Path) -> bool:
        """Check by name or content whether an existing path is of this format."""
        raise NotImplementedError

    def matches_request(self, request: DataRequest) -> bool:
        """Check whether a request for an existing path is for this format, where options decide."""
        return self.matches(request.path)

    def load(self, request: DataRequest) -> DataSet:
        """Load all samples of `request.path`."""
        raise NotImplementedError

    def load_site(self, site: str, request: DataRequest) -> SiteSamples:
        """Load the samples of one site of a federation; by default the domain with its name."""
        return select_site(self.load(request), site, source=request.source)

    def photo_side(self, request: DataRequest, without: Collection[str] = ()) -> int:
        """Find the typical side of photographs of all domains but some; 0 if there are none."""
        return 0

    def check(self, request: DataRequest) -> DataCheck | None:
        """Check the data file by file; None: load it and count its samples."""
        return None

    def check_site(self, site: str, request: DataRequest) -> DataCheck | None:
        """Check the samples of one site file by file; None: load them and count."""
        return None


FORMATS: Registry[type[DataFormat]] = Registry(
    "data format",
    group="unseen.formats",
    builtin=(
        "unseen.data.images.folders",
        "unseen.data.images.image_index",
        "unseen.data.images.parquet_images",
        "unseen.data.images.tar_shards",
        "unseen.data.medical.medical_folders",
        "unseen.data.saved_arrays",
        "unseen.data.tables.table_loader",
    ),
)


def find_format(path: Path) -> DataFormat | None:
    """Find the format of an existing file or folder; None where no format matches."""
    return _first_match(path, lambda entry: entry.matches(path))


def find_requested_format(request: DataRequest) -> DataFormat | None:
    """Find the format of the files that a request names, with what its options say about them."""
    return _first_match(request.path, lambda entry: entry.matches_request(request))


def _first_match(path: Path, is_match: Callable[[DataFormat], bool]) -> DataFormat | None:
    if not path.exists():
        return None
    by_priority = sorted((FORMATS[name]() for name in FORMATS), key=lambda entry: -entry.priority)
    return next((entry for entry in by_priority if is_match(entry)), None)
