"""Groups of samples that belong together: shots of one original image, images of one patient.

A group is stored as a key, a hash of its name, so that names of patients are in no data set, no shared memory
and no message. The same name has the same key at every site.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unseen.errors import UsageError, escape_bytes
from unseen.seeding import derive_seed


def group_keys(names: Sequence[str | None], domains: Sequence[str]) -> npt.NDArray[np.int64]:
    """Compute each sample's key from the name of its group; None: the sample is a group of one.

    domains  the domain of each sample, which tells samples without a group apart
    """
    known: dict[str, int] = {}
    places: Counter[str] = Counter()
    keys = np.empty(len(names), dtype=np.int64)
    for position, (name, domain) in enumerate(zip(names, domains, strict=True)):
        if name is None:
            keys[position] = derive_seed(0, "sample without group", str(domain), places[domain])
        else:
            if name not in known:
                known[name] = derive_seed(0, "group", name)
            keys[position] = known[name]
        places[domain] += 1
    return keys


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a `--group-pattern`; refuse one that is no regular expression or captures nothing."""
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--group-pattern {pattern!r} is no regular expression: {error}") from None
    if not found.groups:
        raise UsageError(
            f"--group-pattern {pattern!r} captures nothing: put the part of the file name that names the "
            "group in parentheses, as in '(.*)_[0-9]+'"
        )
    return found


def match_groups(files: Sequence[str], pattern: str) -> list[str | None]:
    """Return the group that each file's name gives, None where the pattern does not match.

    files  names, with or without folders; only the last part is looked at
    """
    rule = compile_pattern(pattern)
    matches = [rule.search(name.rsplit("/", 1)[-1]) for name in files]
    found = [match.group(1) if match else None for match in matches]
    if files and not any(name is not None for name in found):
        example = escape_bytes(files[0].rsplit("/", 1)[-1])
        raise UsageError(
            f"--group-pattern {pattern!r} matches none of {len(files)} file names, such as {example}"
        )
    return found


def note_groups(names: Sequence[str | None], option: str) -> list[str]:
    """Say how many groups an option found, and how many samples have none."""
    groups, alone = len({name for name in names if name is not None}), sum(name is None for name in names)
    without = f"; {alone} samples without one are groups of one" if alone else ""
    return [f"{option} names {groups} groups, which splits keep together{without}"]
