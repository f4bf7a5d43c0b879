"""Names from the other side that become part of a path: one check for all of them."""

from __future__ import annotations

import re

from unseen.errors import UsageError

LONGEST = 63
SAFE_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")


def require_safe_name(name: object, what: str) -> str:
    """Return a name that can be a file or folder of its own, and refuse every other one.

    A path, `..` and a hidden file are no such names: joined to a folder, they could leave it.

    what  what it names, for the refusal: "a run", "a site"
    """
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"{shown(name)} cannot be the name of {what}: expected letters, digits, '.', '-' or '_', not "
            f"'..', at most {LONGEST}"
        )
    return name


def shown(value: object, *, most: int = 80) -> str:
    """Quote a value from the other side for a message of one line: escaped and of bounded length."""
    text = ascii(value)
    return text if len(text) <= most else f"{text[:most]}..."
