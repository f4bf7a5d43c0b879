"""Write the attacks that the test suite makes into docs/security.md: every finding with the tests against it.

    python docs/update_security.py

A test names the findings that it attacks at the start of its docstring: "P1: ...", or "D4, D5: ...".
`tests/docs/test_security.py` checks that the page is up to date and that no finding is without a test. What
the same attacks did to the version before is in results/robustness/old_attacks.json.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"
TESTS = ROOT / "tests"
BEFORE = ROOT / "results" / "robustness" / "old_attacks.json"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
NAMED = re.compile(r"((?:[PDRN]\d(?:, )?)+):")
LATER = {"then": "did not exist yet"}
"""Of attacks (N) on what was built after the review."""
FINDINGS = {
    "P1": "A server asked a round of `dp-samples` twice: the same noise came twice and was subtracted.",
    "P2": "After a crash a sum of `secure-sum` was opened again without one client: the rest was its update.",
    "P3": "Leave-one-domain-out runs of one seed under `secure-sum` gave as many sums as unknowns.",
    "P4": "Sums over two clients were opened: each could subtract its own part.",
    "P5": "A server that told a client that it alone takes part read its update.",
    "P6": "The epsilon of `dp-samples` was computed from what sites said.",
    "P7": "Secret keys and decoded images lay in files that other users could read.",
    "D1": "Any Flower app ran at a site, read its key and data, and its ledger stayed silent.",
    "D2": "A job could ask for raw samples, clear updates, no noise, training metrics; no site was asked.",
    "D3": "A run id with `../` in it wrote client state outside of the site's home.",
    "D4": "One site with `samples=1e18`, or -10 times its step, owned the model.",
    "D5": "A malformed answer of one site ended the run.",
    "D6": "A site changed the version of another site's client state.",
    "D7": "A held-out site wrote its own score.",
    "D8": "Control characters from the other side reached logs.",
    "R1": "Records cut short were filled up with zero bytes.",
    "R2": "A resumed run without its checkpoint erased its records.",
    "R3": "Flipped bytes in checkpoint, model or cache were used.",
    "R4": "A full disk ended in a traceback.",
    "R5": "Wrong types in job files and damaged records ended in a traceback.",
    "R6": "A named pipe among images stopped the program forever.",
    "R7": "Names that are not UTF-8 passed the check of the data and ended the training.",
    "R8": "Of two `--protect` the last one won, also if it was `none`.",
    "N1": "A job that only evaluates could take any column for its target: its texts and counts left.",
    "N2": "An ONNX file may name another file for its weights (held: onnxruntime does not open it).",
    "N3": "Malformed or impossible findings of a site, or answers changed at random (held from the start).",
    "N4": "A tar member of negative size kept its reader in circles; odd fields ended in a traceback.",
    "N5": "A DICOM or NIfTI file of a few kilobytes that says to be large could take all memory.",
}


def attacks() -> Iterator[tuple[str, str, str]]:
    """Yield (finding, path of the test file, name of the test) for every test that names a finding."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if named := NAMED.match(ast.get_docstring(node) or ""):
                for finding in named[1].split(", "):
                    yield finding, str(path.relative_to(ROOT)), node.name


def write_table() -> str:
    """Write the findings and their tests as a Markdown table."""
    found: dict[str, dict[str, list[str]]] = {finding: {} for finding in FINDINGS}
    for finding, path, name in attacks():
        found[finding].setdefault(path, []).append(name)
    then = json.loads(BEFORE.read_text(encoding="utf-8"))["measurements"]
    rows = [
        f"| {finding} | {FINDINGS[finding]} | {then.get(finding, LATER)['then']} | "
        + "<br>".join(map(_link, paths, paths.values()))
        + " |"
        for finding, paths in found.items()
    ]
    head = [
        "| | what was possible | the attack on the version before | tests that try it now |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _link(path: str, names: list[str]) -> str:
    return f"[{path.removeprefix('tests/')}](../{path}): " + ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Replace the table between the two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{write_table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
