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

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from unseen.data.dataset import DataSet
from unseen.data.site_data import SiteSamples, select_site
from unseen.registry import Registry

if TYPE_CHECKING:
    from unseen.data.sources import DataRequest
    from unseen.data.validate import DataCheck


class DataFormat:
    """Base class of the formats; `matches` and `load` are required, the rest is optional.

    expects   what a user has to pass, for messages: "a table (.csv, .parquet)"
    contents  content of the files, which decides how a trained model reads them
    priority  the format that matches with the highest priority is used
    """

    expects: ClassVar[str] = "a file of its kind"
    contents: ClassVar[Literal["images", "table", "arrays"]] = "arrays"
    priority: ClassVar[int] = 0

    def matches(self, path: Path) -> bool:
        """Check by name or content whether an existing path is of this format."""
        raise NotImplementedError

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
    builtin=("unseen.data.images.folders", "unseen.data.tables.table_loader"),
)


def find_format(path: Path) -> DataFormat | None:
    """Find the format of an existing file or folder; None where no format matches."""
    if not path.exists():
        return None
    by_priority = sorted((FORMATS[name]() for name in FORMATS), key=lambda entry: -entry.priority)
    return next((entry for entry in by_priority if entry.matches(path)), None)
