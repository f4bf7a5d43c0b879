"""Checksums that find accidental damage: running CRC-32 sums, and one file of SHA-256 sums per folder.

CRC-32 finds every damage within four bytes and overlooks others once in four billion, at the speed of memory.
Whoever changes a file on purpose can change its sum too: these are no signatures.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.fileio import parse_toml, read_text, write_text

Content = bytes | memoryview
CHECKSUMS = "checksums.sha256"
"""Name of the file of sums in a folder, in the format of the command `sha256sum`."""


class Crc:
    """A running CRC-32 sum, written with its name: `crc32:1a2b3c4d`."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, content: Content) -> None:
        """Continue the sum with these bytes."""
        self._value = zlib.crc32(content, self._value)

    def __str__(self) -> str:
        return f"crc32:{self._value:08x}"


def crc_of(*contents: Content) -> str:
    """Return the sum of these bytes, one after the other."""
    found = Crc()
    for content in contents:
        found.add(content)
    return str(found)


_LAST_LINE = re.compile(r"\n(?:#|//) checksum (\S+)\n\Z")


def with_checksum_line(text: str, *, comment: str = "#") -> str:
    """Add the sum of a text as its last line, a comment."""
    return f"{text}\n{comment} checksum {crc_of(text.encode())}\n"


def differs_from_checksum_line(text: str) -> bool | None:
    """Compare a text with the sum in its last line; None if it has no such line."""
    found = _LAST_LINE.search(text)
    return None if found is None else crc_of(text[: found.start()].encode()) != found[1]


def check_checksum_line(text: str, path: Path, *, way_out: str) -> None:
    """Refuse a text that differs from the sum in its last line, if it has one.

    way_out  what the user can do, for the message
    """
    if differs_from_checksum_line(text):
        raise UnseenError(
            f"{path} was changed or damaged after it was written (its checksum differs): {way_out}"
        )


def read_recorded_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that a run wrote; one that differs from its checksum is refused."""
    text = read_text(path)
    check_checksum_line(
        text, path, way_out="undo the change; if it was meant, delete the last line, which has the checksum"
    )
    return parse_toml(text, path)


_SUM = "checksum"


def json_with_sum(values: dict[str, Any]) -> str:
    """Write an object as JSON with the sum of its other entries as the entry `checksum`."""
    return json.dumps({**values, _SUM: crc_of(_canonical(values))})


def parse_json_with_sum(text: str) -> dict[str, Any]:
    """Read what `json_with_sum` wrote, or an object without a sum; raise a ValueError if it differs."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"a {type(values).__name__}, expected an object")
    expected = values.pop(_SUM, None)
    if expected is not None and expected != crc_of(_canonical(values)):
        raise ValueError("its checksum differs")
    return values


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def seal(folder: Path, *names: str) -> None:
    """Add these files of a folder to its file of sums."""
    found = {name: _sha256((folder / name).read_bytes()) for name in names if (folder / name).is_file()}
    _write_sums(folder, {**_read_sums(folder), **found})


def unseal(folder: Path, *names: str) -> None:
    """Remove these files from the folder's sums, before they change."""
    found = _read_sums(folder)
    if found.keys() & set(names):
        _write_sums(folder, {name: digest for name, digest in found.items() if name not in names})


def write_sealed_text(path: Path, text: str) -> None:
    """Replace `path` with a UTF-8 text file and keep its sum; a crash in between leaves it without a sum."""
    unseal(path.parent, path.name)
    write_text(path, text)
    seal(path.parent, path.name)


def check_sealed(path: Path, *, way_out: str) -> None:
    """Refuse a file that differs from its folder's sums, if they cover it.

    way_out  what the user can do, for the message
    """
    expected = _read_sums(path.parent).get(path.name)
    if expected is None:
        return
    try:
        found = _sha256(path.read_bytes())
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror or error}") from error
    if found != expected:
        raise UnseenError(
            f"{path} is damaged or was edited (its checksum differs): {way_out}; if the change was meant, "
            f"delete {path.with_name(CHECKSUMS)}"
        )


def _read_sums(folder: Path) -> dict[str, str]:
    sums = folder / CHECKSUMS
    try:
        lines = sums.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UnseenError(f"{sums} cannot be read ({error}): restore it, or delete it") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _write_sums(folder: Path, sums: dict[str, str]) -> None:
    write_text(folder / CHECKSUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 sum of a file of any size, as `sha256sum` prints it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror or error}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
