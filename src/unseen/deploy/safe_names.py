"""Names from the other side that become part of a path: one check for all of them."""

from __future__ import annotations

import re

from unseen.errors import UsageError
from unseen.printable import quote

LONGEST = 63
SAFE_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")


def require_safe_name(name: object, what: str) -> str:
    """Return a name that can be a file or folder of its own, and refuse every other one.

    A path, `..` and a hidden file are no such names: joined to a folder, they could leave it.

    what  what it names, for the refusal: "a run", "a site"
    """
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"{quote(name)} cannot be the name of {what}: expected letters, digits, '.', '-' or '_', not "
            f"'..', at most {LONGEST}"
        )
    return name
