"""`unseen data`: check data before training on it, and download data sets."""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unseen.cli.cache_command import cache_command
from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.cli.options import parse_settings, with_plugins
from unseen.errors import UsageError, escape_bytes, unknown_name

if TYPE_CHECKING:
    from unseen.data import DataRequest
    from unseen.data.download import DownloadResult
    from unseen.data.validate import DataCheck

app = typer.Typer(
    no_args_is_help=True, help="Check data, or download it.\n\nExample:\n\n    unseen data check my_data/"
)
app.command("cache")(cache_command)


@app.command("check")
@with_plugins
def check_command(  # noqa: PLR0917 (one parameter per option)
    path: Annotated[
        str,
        typer.Argument(help="A folder, file or shards (`unseen list formats`), or a named data set."),
    ],
    picture: Annotated[
        Path | None, typer.Option(help="Also plot the counts to this PNG file.", metavar="FILE.png")
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help="Also draw images of every domain to this PNG file, clean and augmented.", metavar="FILE.png"
        ),
    ] = None,
    augment: Annotated[
        str | None, typer.Option(help="Augmentations of the sheet. See `unseen list augmentations`.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images of the sheet, in pixels.")
    ] = None,
    image_column: Annotated[
        str, typer.Option(help="Index file: the column with the images' paths; Parquet: with the images.")
    ] = "",
    domain_column: Annotated[
        str, typer.Option(help="Column (or DICOM tag) that names the domain.")
    ] = "domain",
    target: Annotated[str, typer.Option(help="Column to predict.")] = "target",
    group_column: Annotated[
        str, typer.Option(help="Column (or DICOM tag) that names a sample's group.")
    ] = "",
    set_data: Annotated[
        list[str] | None,
        typer.Option(help="A setting of the data, such as window=40/400.", metavar="KEY=VALUE"),
    ] = None,
    group_pattern: Annotated[
        str,
        typer.Option(help="Folders: regular expression that finds the group in file names.", metavar="REGEX"),
    ] = "",
    task: Annotated[
        str | None, typer.Option(help="Tables: the task; inferred from the target column if not given.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Count samples per domain and class, open every image, and report what is wrong or unusual.

    PATH is a folder domain/class/image, a table (.csv, .parquet), anything else that `unseen list formats`
    names, or a named data set. The exit code is 1 if
    training would refuse the data, else 0.

    Examples:

        unseen data check rotated-digits

        unseen data check my_data/ --picture counts.png

        unseen data check index.csv --image-column path --domain-column hospital --group-column patient

        unseen data check my_data/ --sheet sheet.png --augment standard+rand-augment
    """
    from unseen.cli.progress import DelayedProgressBar
    from unseen.data import DataRequest
    from unseen.data.validate import check_data
    from unseen.tasks import TASKS

    for option, file in (("--picture", picture), ("--sheet", sheet)):
        if file is not None and file.suffix.lower() != ".png":
            raise UsageError(f"{option} {file} must end in .png")
    if sheet is None and (augment is not None or image_size is not None):
        raise UsageError("--augment and --image-size are for the images of --sheet FILE.png: name that file")
    if augment is not None:
        from unseen.data.augmentation import AUGMENTATIONS

        AUGMENTATIONS.check(augment)
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    with DelayedProgressBar(messages()) as bar:
        request = DataRequest(
            source=path,
            root=data_root.expanduser() if data_root else None,
            image_column=image_column,
            domain_column=domain_column,
            target_column=target,
            settings=parse_settings(set_data or []),
            group_column=group_column,
            group_pattern=group_pattern,
            task=task,
            progress=bar,
        )
        check = check_data(request)
        notes: tuple[str, ...] = ()
        if sheet is not None and not check.problem:
            wanted = replace(request, image_size=image_size, skip_unreadable=True)
            notes = write_contact_sheet(wanted, augment, sheet)
    drawn = picture if picture is not None and check.counts else None
    if drawn is not None:
        write_counts_picture(check.counts, drawn)
    if as_json:
        print_json({**check.to_dict(), "picture": str(drawn) if drawn else None, "sheet": list(notes)})
    else:
        for note in notes:
            _say(results(), note)
        _show_check(check, drawn, results(), next_step=_next_step(check, request))
    if not check.ok:
        raise typer.Exit(1)


def _show_check(check: DataCheck, picture: Path | None, console: Console, *, next_step: str) -> None:
    show_findings(check, console)
    if picture is not None:
        _say(console, f"Picture: {picture}")
    if check.problem:
        _say(console, f"Training would refuse this data: {check.problem}", "bold red")
    elif check.unreadable:
        count = len(check.unreadable)
        _say(
            console,
            f"Training would refuse this data: {count} unreadable (--skip-unreadable leaves them out)",
            "bold red",
        )
    else:
        _say(console, f"Training can start, for example: {next_step}", "green")


def show_findings(check: DataCheck, console: Console) -> None:
    """Print the findings: counts, unreadable files, anything unusual."""

    say = partial(_say, console)
    say(f"{check.name}: {check.total} samples", "bold")
    if check.counts:
        console.print(counts_table(check.counts, console))
    for name, reason in check.unreadable.items():
        say(f"unreadable: {name} ({reason})", "red")
    for what, names in _group_files(check).items():
        say(f"converted on reading: {len(names)} with {what}, for example {names[0]}")
    for role, domains in (
        ("held out unless you name others", check.hold_out),
        ("kept to choose the round", check.validate_on),
        ("groups, of which the worst is reported", check.groups),
    ):
        if domains:
            say(f"{role}: {', '.join(domains)}")
    for note in check.notes:
        say(f"note: {note}")
    for warning in check.warnings:
        say(f"warning: {warning}", "yellow")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(escape_bytes(text), style=style), soft_wrap=True)


def _next_step(check: DataCheck, request: DataRequest) -> str:
    """Return the command that trains on this data as it was checked."""
    defaults = type(request)(request.source)
    words = ["unseen", "train", request.source]
    if not check.hold_out:
        words += ["--hold-out", list(check.counts)[-1] if check.counts else "DOMAIN"]
    for option, name in (
        ("--image-column", "image_column"),
        ("--domain-column", "domain_column"),
        ("--target", "target_column"),
        ("--group-column", "group_column"),
        ("--group-pattern", "group_pattern"),
        ("--task", "task"),
    ):
        if getattr(request, name) != getattr(defaults, name):
            words += [option, str(getattr(request, name))]
    for name, value in request.settings.items():
        words += ["--set-data", f"{name}={value}"]
    return shlex.join(words)


def _group_files(check: DataCheck) -> dict[str, list[str]]:
    """Group the files by what is unusual, the most frequent first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, what in check.unusual.items():
        groups[what].append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="A named data set, see `unseen list data`.")],
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA")
    ] = None,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Also download what is not free for every use.")
    ] = False,
    mirror: Annotated[str, typer.Option(help="URL of a mirror with the same files.", metavar="URL")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Download a named data set, checked against published checksums, or explain how to obtain it.

    A stopped download resumes where it was. The exit code is 1 if a manual step remains.

    Examples:

        unseen data get rotated-mnist --data-root data/

        unseen data get vlcs
    """
    from unseen.cli.progress import DelayedProgressBar
    from unseen.data.download import get_data

    root = data_root.expanduser() if data_root else None
    try:
        with DelayedProgressBar(messages(), bytes=True) as bar:
            outcome = get_data(name, root=root, accept_terms=accept_terms, mirror=mirror, progress=bar)
    except KeyboardInterrupt:
        messages().print("\nStopped. The same command resumes where it was.")
        sys.exit(INTERRUPTED)
    if as_json:
        print_json(_download_json(outcome))
    else:
        _show_download(outcome, results())
    if outcome.refused or outcome.explained:
        raise typer.Exit(1)


def _show_download(outcome: DownloadResult, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    if not (outcome.downloaded or outcome.present or outcome.refused or outcome.explained):
        say(f"{outcome.name} comes with the package: nothing to download")
    for title in outcome.present:
        say(f"{title}: already there")
    for title in outcome.downloaded:
        say(f"{title}: downloaded and checked", "green")
    for download in outcome.refused:
        say(f"{download.title}: not downloaded; licence: {download.licence}; accept it with --accept-terms")
    if manual := outcome.explained:
        say(f"{outcome.name} is not downloaded: no checksum of it is published")
        say(f"licence: {manual.licence}")
        say(f"where: {manual.where}")
        say(f"put {manual.put} below {outcome.root}")
        say(f"then: unseen data check {outcome.name}")


def _download_json(outcome: DownloadResult) -> dict[str, object]:
    manual = outcome.explained
    return {
        "name": outcome.name,
        "root": str(outcome.root),
        "downloaded": outcome.downloaded,
        "present": outcome.present,
        "terms_to_accept": {download.title: download.licence for download in outcome.refused},
        "to_do": {"licence": manual.licence, "where": manual.where, "put": manual.put} if manual else None,
    }


Counts = Mapping[str, Mapping[str, int]]

BAR = 12
MISSING = "none"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
MOST_CLASSES = 24
_MOST_NAMED = 3


def counts_table(counts: Counts, console: Console) -> Table:
    """Make one row per domain and one column per class where that fits, else the extremes of each row."""
    classes = list(next(iter(counts.values()), {}))
    boundless = console.options.update(width=10_000)
    for bars in (True, False):
        table = _by_class(counts, classes, bars=bars)
        if (
            len(classes) <= MOST_CLASSES
            and console.measure(table, options=boundless).maximum <= console.width
        ):
            return table
    return _by_extremes(counts, classes)


def write_counts_picture(counts: Counts, path: Path) -> None:
    """Write the report's figure of the counts as PNG."""
    from unseen.fileio import write_atomically
    from unseen.report.png import to_png
    from unseen.report.prediction_figures import sample_counts
    from unseen.runs.reader import Run

    start = {"event": "start", "data": {"class_counts": counts}}
    (chart,) = sample_counts(Run(folder=Path(), config={}, records=[start], result=None)).values()
    image = to_png(chart)
    write_atomically(path, lambda target: target.write_bytes(image))


def write_contact_sheet(request: DataRequest, augment: str | None, path: Path) -> tuple[str, ...]:
    """Write the contact sheet as PNG; return what to say about it.

    augment  the default of training unless given
    """
    from unseen.data import load_data
    from unseen.data.augmentation import parse_augmentations
    from unseen.fileio import write_atomically
    from unseen.report.contact_sheet import draw_sheet
    from unseen.runner.augmentation_checks import default_augmentation

    data = load_data(request)
    chosen = augment or default_augmentation(data)
    image = draw_sheet(data, chosen)
    write_atomically(path, lambda target: image.save(target, format="PNG"))
    inside = ", ".join(step.name for step in parse_augmentations(chosen).in_network)
    shown = f"Sheet: {path} ({data.input_shape[-1]} pixels, --augment {chosen})"
    return (shown, *([f"Not on the sheet, as it acts inside the network: {inside}"] if inside else []))


def _by_class(counts: Counts, classes: list[str], *, bars: bool) -> Table:
    several = len(classes) > 1
    table = _counts_columns(*(classes if several else ()), "samples", *([""] if bars else []))
    most = max((number for row in counts.values() for number in row.values()), default=0)
    largest = max(sum(row.values()) for row in counts.values())
    for domain, row in counts.items():
        total = sum(row.values())
        cells = [_cell(row[label], most) for label in classes if several]
        table.add_row(Text(domain), *cells, str(total), *([_bar(total, largest)] if bars else []))
    if several:
        sums = [sum(row[label] for row in counts.values()) for label in classes]
        table.add_section()
        table.add_row("all", *map(str, sums), str(sum(sums)))
    return table


def _by_extremes(counts: Counts, classes: list[str]) -> Table:
    table = _counts_columns("samples", "", "smallest class", "largest class", "missing classes")
    largest = max(sum(row.values()) for row in counts.values())
    for domain, row in counts.items():
        total = sum(row.values())
        present = [label for label in classes if row[label]]
        least, most = min(present, key=row.__getitem__), max(present, key=row.__getitem__)
        table.add_row(
            Text(domain),
            str(total),
            _bar(total, largest),
            Text(f"{row[least]} ({least})"),
            Text(f"{row[most]} ({most})"),
            _lacking([label for label in classes if not row[label]], len(classes)),
        )
    table.caption = f"{len(classes)} classes"
    return table


def _counts_columns(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("domain", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right" if name else "left", overflow="fold", no_wrap=not name)
    return table


def _cell(number: int, most: int) -> Text:
    """Write a count, with its height relative to the largest cell."""
    if not number:
        return Text(MISSING, style="bold red")
    return Text(f"{_LEVELS[round((len(_LEVELS) - 1) * number / most)]} {number}")


def _bar(number: int, most: int) -> str:
    whole, eighths = divmod(round(8 * BAR * number / max(most, 1)), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _lacking(labels: list[str], classes: int) -> Text:
    if not labels:
        return Text(MISSING)
    named = ", ".join(labels[:_MOST_NAMED]) + (", ..." if len(labels) > _MOST_NAMED else "")
    return Text(f"{len(labels)} of {classes}: {named}", style="bold red")
