"""Pictures of the held-out domain with the model's answer; right and wrong differ in word, sign and frame."""

from __future__ import annotations

import re
from typing import Any

from unseen.report.formatting import SPACE
from unseen.report.markup import Markup, esc, section, tag
from unseen.runs.reader import Run

MOST = 24
MOST_CHARACTERS = 600_000
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def examples_section(run: Run) -> Markup:
    """The recorded examples, the wrong answers first, as many as the page can carry."""
    shown = _shown(run.final.get("examples") or [])
    if not shown:
        return Markup("")
    groups = []
    named = len(run.held_out) > 1
    for right, title in ((False, "Wrong answers"), (True, "Right answers")):
        cards = [_card(example, right, named) for example in shown if _is_right(example) == right]
        if cards:
            groups += [tag("h3", title), tag("div", *cards, class_="examples")]
    note = "A handful of held-out samples, not a fair share of right and wrong ones."
    return section("Examples", *groups, tag("p", note, class_="note"))


def _shown(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    room = MOST_CHARACTERS
    for example in examples:
        picture = str(example.get("png") or "")
        if _BASE64.fullmatch(picture) and len(picture) <= room and len(shown) < MOST:
            shown.append(example)
            room -= len(picture)
    return shown


def _is_right(example: dict[str, Any]) -> bool:
    return bool(example.get("truth") == example.get("predicted"))


def _card(example: dict[str, Any], right: bool, named: bool) -> Markup:
    truth, predicted = example.get("truth"), example.get("predicted")
    probability = example.get("probability")
    sure = f"{100 * probability:.0f}{SPACE}% sure" if isinstance(probability, int | float) else ""
    told = f"True class {truth}, predicted {predicted}"
    image = Markup(f'<img alt="{esc(told)}" src="data:image/png;base64,{esc(example["png"])}">')
    verdict = tag("span", "✓ right" if right else "✗ wrong", class_="verdict")
    answer = tag("span", tag("b", predicted), "" if right else f" – is {truth}", class_="answer")
    domain = str(example.get("domain", "")) if named else ""
    where = tag("span", " · ".join(part for part in (sure, domain) if part), class_="hint")
    caption = tag("figcaption", verdict, answer, where)
    return tag("figure", image, caption, title=told, class_="example right" if right else "example wrong")
