"""Text from the other side of a connection, made safe for logs, records and terminals."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 400
"""Characters of a foreign text that are kept: enough for every message of Unseen's own."""
_HARMFUL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move the cursor, break or reorder lines, or cannot be encoded."""


def printable(value: object, *, longest: int = LONGEST) -> str:
    """Return a text on one line, without control characters and of bounded length.

    Escape sequences, line breaks and marks that reorder text become question marks, so that nobody can write
    another's lines into a log.
    """
    text = value if isinstance(value, str) else _describe(value)
    cut = text[:longest]
    clean = "".join("?" if unicodedata.category(sign) in _HARMFUL else sign for sign in cut)
    return clean + " ..." if len(text) > longest else clean


def hide_secrets(text: str) -> str:
    """Remove users, passwords, and tokens of queries from the addresses in a text."""
    text = re.sub(r"(://)[^/\s@]*@", r"\1", text)
    return re.sub(
        r"([?&][^=&\s]*(?:token|key|password)[^=&\s]*=)[^&\s'\")]+", r"\1...", text, flags=re.IGNORECASE
    )


def is_printable(text: str, *, longest: int = LONGEST) -> bool:
    """Check whether `printable` would leave a text as it is."""
    return printable(text, longest=longest) == text


def quote(value: object, *, longest: int = 80) -> str:
    """Quote a value for a message of one line, with every unusual character escaped."""
    text = ascii(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _describe(value: object) -> str:
    """Write a number as it is and name the kind of anything else: its text could be endless."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return str(value)
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
