"""Sources of data: a registered name, or a file or folder of a registered format."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unseen.data.dataset import DataSet
from unseen.data.formats import FORMATS, GROUP_COLUMN, GROUP_PATTERN, DataFormat, find_requested_format
from unseen.data.site_data import SiteSamples, select_site
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.hparams import Settings, make_settings, non_default_settings
from unseen.registry import Registry

if TYPE_CHECKING:
    from unseen.data.download import Acquisition

DATA_ROOT_VARIABLE = "UNSEEN_DATA"
"""Environment variable with the folder of the named data sets."""
Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how many are done, how many there are)."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class DataRequest:
    """A request for data.

    root        folder of the named data sets (`--data-root` or `UNSEEN_DATA`)
    image_size  side of the squares that images are resized to; None keeps the source's own default
    skip_unreadable  leave unreadable image files out with a note (`--skip-unreadable`) instead of failing
    task        None: a table decides by its target column
    image_column  of an index file, the column with the images' paths; of Parquet, the one with the images
    group_column  the column (or DICOM tag) that names each sample's group, which splits never separate;
                  empty: none
    group_pattern  folders: a regular expression whose first capture in a file's name is its group
    samples_per_domain  keep at most so many samples of every domain, balanced by class; None: all
    settings    `--set-data`: settings of a named data set or of a format, such as the direction of rotation
    """

    source: str
    root: Path | None = None
    image_size: int | None = None
    skip_unreadable: bool = False
    domain_column: str = "domain"
    target_column: str = "target"
    task: str | None = None
    image_column: str = ""
    group_column: str = ""
    group_pattern: str = ""
    samples_per_domain: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    progress: Progress = no_progress

    @property
    def path(self) -> Path:
        """The source as a path."""
        return Path(self.source).expanduser()


@dataclass(frozen=True)
class Source:
    """A named data set: how to load it, its description, and where its files come from.

    acquisition  None when it comes with the package
    present      which domains have files below a data root, found without reading them
    photo_side   finds the side of its photographs, which may be resized at will; None where it has none
    hold_out     domains that the release keeps for its test, held out where the user names none
    validate_on  domains that the release keeps to choose a model by
    settings     what `--set-data` may set
    grouped      whether several samples show the same original, so that splits are by group unless the user
                 says otherwise
    """

    load: Callable[[DataRequest], DataSet]
    summary: str
    domains: str
    acquisition: Acquisition | None = None
    present: Callable[[Path], Iterable[str]] | None = None
    photo_side: Callable[[DataRequest, Collection[str]], int] | None = None
    hold_out: tuple[str, ...] = ()
    validate_on: tuple[str, ...] = ()
    settings: type[Settings] = Settings
    grouped: bool = False

    def settings_type(self) -> type[Settings]:
        """Return the settings, for `unseen list data NAME`."""
        return self.settings

    def present_domains(self, root: Path | None) -> tuple[str, ...]:
        """List the domains that can be loaded from a data root, judged by its folders."""
        if self.acquisition is not None and root is None:
            return ()
        if self.acquisition is None or self.present is None or root is None:
            return tuple(self.domains.split(", "))
        return tuple(self.present(root))

    @property
    def needs_files(self) -> bool:
        """Whether a user must supply files."""
        return self.acquisition is not None


SOURCES: Registry[Source] = Registry("data set", group="unseen.data", builtin=("unseen.data.benchmarks",))


def load_data(request: DataRequest) -> DataSet:
    """Load a data set by its name or, for a file or folder, by its format."""
    _check_image_size(request)
    from unseen.data.subsampling import subsample

    if request.source in SOURCES:
        _require_no_groups(request)
        return subsample(SOURCES[request.source].load(request), request.samples_per_domain)
    found = _require_format(request)
    changed_data_settings(request)
    return subsample(found.load(request), request.samples_per_domain)


def _require_no_groups(request: DataRequest) -> None:
    """Refuse to name groups in a known data set, which names its own where it has any."""
    for option, value in (
        ("--group-column", request.group_column),
        ("--group-pattern", request.group_pattern),
    ):
        if value:
            raise UsageError(
                f"{option} is for your own tables and folders; data set {request.source!r} names its groups "
                "itself where it has any: leave the option out"
            )


def require_fitting_groups(found: DataFormat, request: DataRequest) -> None:
    """Refuse an option for groups that this format would ignore."""
    given = {GROUP_COLUMN: request.group_column, GROUP_PATTERN: request.group_pattern}
    for option, value in given.items():
        if value and option not in found.group_options:
            instead = " or ".join(found.group_options)
            raise UsageError(
                f"{option} {value} does not apply to {request.source}, which is read as {found.expects}: "
                f"name its groups with {instead}"
            )


def photo_side(request: DataRequest, without: Collection[str] = ()) -> int:
    """Find the typical side of a source's photographs, without decoding them; 0 if it has none.

    without  domains that are not looked at: held-out ones must not decide how a model is trained
    """
    if request.source in SOURCES:
        find = SOURCES[request.source].photo_side
        return find(request, without) if find else 0
    return _require_format(request).photo_side(request, without)


def load_site(site: str, request: DataRequest) -> SiteSamples:
    """Load the samples of one site of a federation, from its own files or from a named data set."""
    _check_image_size(request)
    from unseen.data.subsampling import subsample_site

    if request.source in SOURCES and not request.path.exists():
        samples = select_site(SOURCES[request.source].load(request), site, source=request.source)
    else:
        changed_data_settings(request)
        samples = _require_format(request).load_site(site, request)
    return subsample_site(samples, request.samples_per_domain)


def changed_data_settings(request: DataRequest) -> dict[str, Any]:
    """Check what `--set-data` gives and return the settings that differ from their defaults."""
    if not request.settings:
        return {}
    return non_default_settings(data_settings(request, _settings_type(request)))


def _settings_type(request: DataRequest) -> type[Settings]:
    """Return the settings of a named data set, or of the format of files; refuse others."""
    if request.source in SOURCES:
        return SOURCES[request.source].settings
    found = find_requested_format(request)
    if found is None or found.settings is Settings:
        raise UsageError(
            f"--set-data is for named data sets and medical images, and {request.source} is neither; see "
            "`unseen list data NAME` and `unseen list formats NAME`"
        )
    return found.settings


D = TypeVar("D", bound=Settings)


def data_settings(request: DataRequest, kind: type[D]) -> D:
    """Return the settings of a named data set or a format, as a request gives them."""
    return make_settings(kind, request.settings, owner=f"data set {request.source!r}")


def _check_image_size(request: DataRequest) -> None:
    if request.image_size is not None and request.image_size < 4:
        raise UsageError(f"image size {request.image_size} is too small; use 4 or more pixels")


def _require_format(request: DataRequest) -> DataFormat:
    """Find the format of the files a request names, or refuse them with the nearest name of a data set."""
    path = request.path
    found = find_requested_format(request)
    if found is not None:
        require_fitting_groups(found, request)
        return found
    if path.exists():
        expected = " or ".join(FORMATS[name].expects for name in FORMATS)
        raise UsageError(f"{path} is a file of unknown type; expected {expected}")
    if "/" in request.source or request.source.startswith("."):
        raise UnseenError(f"no such folder or file: {path}")
    raise unknown_name("data set (and no such folder)", request.source, SOURCES)


def released_split(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the domains that a release holds out and those that select a model; empty without a split."""
    if name not in SOURCES:
        return (), ()
    return SOURCES[name].hold_out, SOURCES[name].validate_on


def shows_originals_again(name: str, settings: Mapping[str, Any]) -> bool:
    """Check whether a named data set, or files with these settings, have several samples of one original."""
    if name in SOURCES:
        return SOURCES[name].grouped
    return takes_several(str(settings.get("slices", ONE_SLICE[0])))


def list_sources() -> list[tuple[str, Source]]:
    """List the named data sets."""
    return [(name, SOURCES[name]) for name in SOURCES]


ONE_SLICE = ("auto", "middle", "1")
"""Values of the setting `slices` that take one picture of each file."""


def takes_several(slices: str) -> bool:
    """Check whether a setting `slices` takes several pictures of a volume, which then are a group."""
    return slices not in ONE_SLICE


def resolve_data_root(named: str | Path | None) -> Path | None:
    """Return the folder of the named data sets: the one given, else that of `UNSEEN_DATA`, else None."""
    root = named or os.environ.get(DATA_ROOT_VARIABLE)
    return Path(root).expanduser() if root else None


def require_data_root(request: DataRequest, *, needs: str) -> Path:
    """Return the data root of a request, or explain which files have to be below it."""
    root = resolve_data_root(request.root)
    if root is not None:
        return root
    raise UnseenError(
        f"{request.source} needs files that you supply and no data root is set: put {needs} "
        f"below a folder and name it with --data-root or the environment variable {DATA_ROOT_VARIABLE}"
    )
