"""Write the walk of one training run into docs/architecture.md: every source file it enters, in order.

    python docs/update_walk.py

A file counts when one of its functions is called, not when it is imported. It is in bold if it carries the
run: if it is on the call stack while the run passes samples through the network or syncs a file to disk.
The others are asked on the way (for a setting, a check, a sum) and return at once. The sentence next to a
file is the first line of its docstring. `tests/docs/test_walk.py` checks that the page is up to date.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "unseen"
BEGIN, END = "<!-- walk: begin -->", "<!-- walk: end -->"
TRACE = """
import json, sys
from pathlib import Path

source, out, listed = sys.argv[1:4]
entered, carrying = {}, set()


def is_import(frame):
    while frame is not None:
        if "importlib" in frame.f_code.co_filename or frame.f_code.co_name == "<module>":
            return frame.f_code.co_filename != __file__
        frame = frame.f_back
    return False


def mark_stack(frame):
    while frame is not None:
        carrying.add(frame.f_code.co_filename)
        frame = frame.f_back


def enter(frame, event, called):
    name = frame.f_code.co_filename
    if event == "c_call" and getattr(called, "__name__", "") == "fsync":
        mark_stack(frame)
    if event != "call":
        return
    if frame.f_code.co_name == "_call_impl" and "torch" in name:
        mark_stack(frame.f_back)
    if not name.startswith(source) or name in entered or frame.f_code.co_name[0] == "<":
        return
    if not is_import(frame.f_back) and not (Path(out) / "model.safetensors").exists():
        entered[name] = frame.f_code.co_qualname


from unseen.cli.main import main

sys.argv = [
    "unseen", "train", "rotated-digits", "--hold-out", "75", "--method", "csac",
    "--rounds", "2", "--workers", "1", "--out", out,
]
sys.setprofile(enter)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
Path(listed).write_text(json.dumps({name: [call, name in carrying] for name, call in entered.items()}))
"""


def trace() -> dict[str, tuple[str, bool]]:
    """Train two rounds of CSAC; return the files entered until the model is on disk.

    Each comes with the function it was entered at, and whether it carries the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, listed = Path(folder) / "trace.py", Path(folder) / "entered.json"
        script.write_text(TRACE, encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, str(script), str(SOURCE), str(Path(folder) / "run"), str(listed)],
            env=environment,
            check=True,
            capture_output=True,
            cwd=folder,
        )
        entered = json.loads(listed.read_text(encoding="utf-8"))
    return {str(Path(name).relative_to(SOURCE)): tuple(found) for name, found in entered.items()}


def describe(path: str) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse((SOURCE / path).read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0]


def write_table(entered: dict[str, tuple[str, bool]]) -> str:
    """Write the walk as a Markdown table; files that carry the run are in bold."""
    rows = []
    for number, (path, (call, carries)) in enumerate(entered.items(), start=1):
        link = f"[{path}](../src/unseen/{path})"
        rows.append(f"| {number} | {f'**{link}**' if carries else link} | `{call}` | {describe(path)} |")
    return "\n".join(["| # | file | entered at | what it is |", "|--:|---|---|---|", *rows])


def main() -> None:
    """Replace the table between the two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{write_table(trace())}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
