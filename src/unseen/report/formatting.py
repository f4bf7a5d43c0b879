"""Format numbers and names for people, the same in the terminal, in Markdown and on the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from unseen.tasks import is_fraction

NOTHING = "–"
SPACE = "\u00a0"
HELD_OUT_MARK = " (held out)"


def method_name(method: object) -> str:
    """Return a method's title as its paper writes it, or the name itself if it is not registered."""
    from unseen.methods import METHODS

    name = str(method)
    return METHODS[name].title if name in METHODS else name


def is_number(value: object) -> TypeGuard[int | float]:
    """Check whether a recorded value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def p_text(value: object, name: str = "") -> str:
    """Format a p-value, in a sentence after its name."""
    if not is_number(value):
        return NOTHING
    if value < 1e-4:
        return f"{name} < 0.0001".strip()
    return f"{name} = {value:.2g}" if name else f"{value:.2g}"


def is_matrix(value: object) -> TypeGuard[list[list[Any]]]:
    """Check whether a value is a list of equally long rows, with a number in each."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and any(map(is_number, row)) for row in value)
        and len({len(row) for row in value}) == 1
    )


def format_value(value: object, metric: str = "") -> str:
    """Format a metric's value: percent with one decimal for accuracies, else four significant digits."""
    if not is_number(value):
        return NOTHING
    if is_fraction(metric):
        return f"{100 * value:.1f}{SPACE}%"
    return format_count(round(value)) if 1e4 <= abs(value) < 1e9 else f"{value:#.4g}".removesuffix(".")


def format_count(value: object) -> str:
    """Format a whole number with thin spaces between groups of three digits."""
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else NOTHING


def format_duration(seconds: object) -> str:
    """Format a time span in its two largest units."""
    if not is_number(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f}{SPACE}s" if seconds < 10 else f"{seconds:.0f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {rest:02d}{SPACE}s"
    return f"{minutes // 60}{SPACE}h {minutes % 60:02d}{SPACE}min"


def format_clock(seconds: object) -> str:
    """Format a time span as minutes:seconds or hours:minutes:seconds, for narrow tables."""
    if not is_number(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_bytes(amount: object) -> str:
    """Format a number of bytes in decimal units."""
    if not is_number(amount):
        return NOTHING
    value = float(amount)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g}{SPACE}{unit}"
        value /= 1000
    return f"{value:.3g}{SPACE}TB" if value < 999.5 else f"{value:.0f}{SPACE}TB"


def shorten_names(names: Sequence[str], most: int) -> dict[str, str]:
    """Shorten names to about `most` characters by their middle; all stay distinct and keep held-out marks."""
    short: dict[str, str] = {}
    for full in dict.fromkeys(names):
        mark = HELD_OUT_MARK if full.endswith(HELD_OUT_MARK) else ""
        name, room = full.removesuffix(mark), most - len(mark) - 1
        head = room * 3 // 5
        cut = (name if len(name) <= room + 1 else f"{name[:head]}…{name[len(name) - (room - head) :]}") + mark
        taken = set(short.values())
        tries = itertools.chain([cut], (f"{cut} ({twin})" for twin in itertools.count(2)))
        short[full] = next(attempt for attempt in tries if attempt not in taken)
    return short


def join_names(names: Sequence[Any], *, quote: bool = True, limit: int = 6) -> str:
    """Join names for a sentence: 'a', 'b' and 'c'; long lists are shortened and say so."""
    shown = [f"‘{name}’" if quote else str(name) for name in names[:limit]]
    if len(names) > limit:
        return ", ".join(shown) + f" and {len(names) - limit} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
