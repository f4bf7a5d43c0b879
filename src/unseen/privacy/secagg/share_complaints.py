"""Who is wrong where clients say that others sent them unusable shares."""

from __future__ import annotations

from collections.abc import Mapping, Set


def find_liars(complaints: Mapping[str, Set[str]], *, needed: int) -> dict[str, str]:
    """Decide who is wrong where clients reject the shares of others.

    complaints  the clients that each one rejects
    needed      clients that must hold a usable share of each

    One whose shares most others reject is wrong; then one that rejects those of most others; then one whose
    shares fewer than `needed` of the rest can use.
    """
    liars: dict[str, str] = {}

    def rejecters(name: str) -> list[str]:
        return [other for other, rejected in complaints.items() if other not in liars and name in rejected]

    for name in complaints:
        by = rejecters(name)
        if _most(len(by), len(complaints)):
            liars[name] = f"sent unusable shares to {', '.join(by)}"
    for name, rejected in complaints.items():
        among = set(complaints) - set(liars)
        if name in among and _most(len(rejected & among), len(among)):
            liars[name] = f"rejects the shares of {', '.join(sorted(rejected & among))}"
    for name in complaints:
        by = rejecters(name)
        if name not in liars and by and len(complaints) - len(liars) - len(by) < needed:
            liars[name] = f"sent unusable shares to {', '.join(by)}"
    return liars


def _most(number: int, clients: int) -> bool:
    """Whether a number of clients are most of the others of one of them, and more than one."""
    return number > 1 and 2 * number > clients - 1
