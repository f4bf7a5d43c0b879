"""Errors that users see: each says what was found, what was expected and what to do.

The command line prints them as one line and exits with `exit_code`; anything else is a bug and
keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UnseenError(Exception):
    """A failure at run time: unreadable data, a full disk, a diverged client."""

    exit_code = 1


class UsageError(UnseenError):
    """An invalid request: an unknown name, an impossible number."""

    exit_code = 2


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Describe a name that is not known, with the nearest one that is.

    kind  what it should name: "method", or "setting of method 'csac'", which a colon follows
    """
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    colon = ":" if " of " in kind or "(" in kind else ""
    return UsageError(f"unknown {kind}{colon} {name!r}.{hint} Known: {listed}.")


def escape_bytes(text: str) -> str:
    """Escape undecodable bytes, such as those of a file name in an unknown encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def missing_extra(package: str, extra: str, purpose: str) -> UnseenError:
    """Describe an optional library that is needed now but not installed."""
    return UnseenError(f"{purpose} needs {package}, which is not installed: pip install 'unseen[{extra}]'")
