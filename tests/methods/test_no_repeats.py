"""No two method files repeat a block of code: what serves several methods is one function that they share."""

from __future__ import annotations

import ast
import io
import keyword
import textwrap
import tokenize
from collections.abc import Iterator
from itertools import combinations, count
from pathlib import Path

import unseen.methods
from unseen.methods.base import Method

FOLDER = Path(unseen.methods.__file__).parent
SHORTEST = 6
"""So many lines of the same shape are a repeat."""
FACTS = set(Method.__annotations__)
"""What a method's class says of itself."""
CLASSES = count()
"""Numbers the classes that were read, so that no two are alike."""
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip
INSIDE_TEXT = {getattr(tokenize, kind, None) for kind in ("FSTRING_MIDDLE", "FSTRING_END")}


def lines_without_code(tree: ast.Module) -> set[int]:
    """Lines that name or describe: imports, docstrings, and what a class or module declares."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(lines_of(node))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            described = [part for part in node.body[:1] if is_text(part)]
            if not isinstance(node, ast.FunctionDef):
                described += [part for part in node.body if is_declaration(part)]
            found |= {number for part in described for number in lines_of(part)}
        if isinstance(node, ast.ClassDef):
            found |= set(range(first_line(node), node.body[0].lineno))
    return found


def lines_of(node: ast.stmt) -> range:
    return range(node.lineno, node.end_lineno + 1)


def is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_declaration(node: ast.stmt) -> bool:
    """A setting with its meaning, a paper, or a fact about a method."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("setting", "Paper"):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id in FACTS for target in targets)


def first_line(node: ast.ClassDef) -> int:
    return min(part.lineno for part in [node, *node.decorator_list])


def shapes(text: str) -> Iterator[tuple[int, str]]:
    """Number and shape of every line of code: names, texts and numbers are alike, keywords and signs are not.

    Lines of nothing but brackets and texts are passed over. A class begins with a line unlike any other, so
    that no block reaches from one into the next.
    """
    tree = ast.parse(text)
    passed_over = lines_without_code(tree)
    starts = {first_line(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    by_line: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE | INSIDE_TEXT:
            by_line.setdefault(token.start[0], []).append(sign_of(token))
    for number, signs in by_line.items():
        if number in starts:
            yield number, f"class {next(CLASSES)}"
        elif number not in passed_over and any(sign.isalpha() for sign in signs):
            yield number, " ".join(signs)


def sign_of(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if keyword.iskeyword(token.string) else "name"
    if token.type == tokenize.NUMBER:
        return "0"
    return token.string if token.type == tokenize.OP else "''"


def repeats(one: str, other: str) -> list[tuple[range, range]]:
    """Where two texts have runs of at least `SHORTEST` lines of the same shape."""
    return common_blocks(list(shapes(one)), list(shapes(other)))


def common_blocks(first: list[tuple[int, str]], second: list[tuple[int, str]]) -> list[tuple[range, range]]:
    places: dict[tuple[str, ...], list[int]] = {}
    for start in range(len(second) - SHORTEST + 1):
        places.setdefault(block(second, start), []).append(start)
    return [
        (span(first, start), span(second, there))
        for start in range(len(first) - SHORTEST + 1)
        for there in places.get(block(first, start), [])
    ]


def block(lines: list[tuple[int, str]], start: int) -> tuple[str, ...]:
    return tuple(shape for _, shape in lines[start : start + SHORTEST])


def span(lines: list[tuple[int, str]], start: int) -> range:
    return range(lines[start][0], lines[start + SHORTEST - 1][0] + 1)


def test_no_two_method_files_repeat_a_block():
    lines = {
        str(path.relative_to(FOLDER)): list(shapes(path.read_text(encoding="utf-8")))
        for path in sorted(FOLDER.rglob("*.py"))
    }
    found = [
        f"{one}:{here.start}-{here.stop - 1} and {other}:{there.start}-{there.stop - 1}"
        for one, other in combinations(lines, 2)
        for here, there in common_blocks(lines[one], lines[other])
    ]
    assert not found, "write these once, as a function that both use:\n" + "\n".join(found)


BLOCK = """
    def server(self, work):
        updates = work.updates
        total = updates.rows.sum(dim=0)
        for client in updates.clients:
            total = total * 2 + 1
        return total / len(updates)
"""
RENAMED = """
    # other names, other numbers
    def merge(me, given):
        sent = given.sent

        mean = sent.table.mean(axis=1)
        for site in sent.sites:
            mean = mean * 3 + 4
        return mean / count(sent)
"""
HEADER = '''
@register
class Some(Method[SomeSettings]):
    """What it is."""

    name = "some"
    summary = "does something"
    paper = Paper(
        title="Title",
        authors="Author",
        year=2020,
        venue="Venue",
    )
    sends: tuple[str, ...] = ("model weights", "number of samples", SOMETHING)
'''


def test_a_block_is_found_under_other_names():
    assert repeats(HEADER + BLOCK, HEADER + RENAMED) == [(range(16, 22), range(17, 24))]


def test_what_a_class_declares_is_no_block():
    settings = "@dataclass\nclass S(Settings):\n" + "    x: float = setting(0.1, 'meaning')\n" * 7
    imports = "".join(f"from unseen.part{number} import thing\n" for number in range(7))
    text = imports + settings + HEADER + "\n    def server(self, work):\n        return work.mean()\n"
    assert repeats(text, text) == []


def test_less_or_other_code_is_no_block():
    shorter = BLOCK.replace("        updates = work.updates\n", "")
    assert repeats(HEADER + shorter, HEADER + shorter) == []
    assert repeats(HEADER + BLOCK, HEADER + BLOCK.replace("* 2 + 1", "* 2")) == []
    assert repeats(HEADER + BLOCK, HEADER + BLOCK.replace("for client in", "while client in")) == []


def test_a_block_ends_where_a_class_begins():
    function = textwrap.dedent(BLOCK.replace("        updates = work.updates\n", ""))
    text = function + "class C:\n    def f(self):\n        return 1\n"
    assert repeats(text, text) == []
