"""Data flows one way: a package imports only from those before it, and commands load heavy libraries late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "unseen"
LAYERS = (
    {
        *("errors", "seeding", "registry", "fileio", "hparams", "child_processes", "devices"),
        *("checksums", "tensor_files", "typed_values", "printable", "config_options", "run_identity"),
        *("frames", "session_parts"),
    },
    {"calibration"},
    {"tasks"},
    {"data"},
    {"federation"},
    {"models"},
    {"evaluation"},
    {"training"},
    {"aggregation"},
    {"privacy"},
    {"methods"},
    {"config"},
    {"runs"},
    {"callbacks"},
    {"engine"},
    {"report", "serving"},
    {"runner", "judging"},
    {"deploy"},
    {"audit", "bench", "sklearn"},
    {"advice", "live"},
    {"cli", "__main__"},
)
"""Parts of one layer may not import one another, except those named below."""
LAYER = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
MAY_IMPORT_PEERS = {*LAYERS[0], "cli", "__main__"}
ALLOWED = {
    "config": {
        *("errors", "seeding", "registry", "fileio", "hparams", "tasks", "data", "evaluation"),
        *("checksums", "typed_values", "config_options", "run_identity"),
    }
}
"""Parts with a narrower rule than their layer gives them."""
HEAVY = {
    *("torch", "timm", "torchvision", "sklearn", "scipy", "altair", "onnx", "onnxruntime", "pyarrow"),
    *("flwr", "cryptography", "open_clip", "pydicom", "nibabel", "datasets", "webdataset"),
    *("pandas", "polars", "numpy", "PIL", "jinja2", "filelock", "tensorboard", "tenseal", "opacus"),
    *("mlflow", "wandb", "trackio"),
}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
"""All but the public face, which only passes names on."""


def part_of(path: Path) -> str:
    """The package, or the module at the top, that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_parts(tree: ast.AST) -> set[str]:
    """Every part of unseen that a file imports anywhere in it, also inside functions and for types only."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("unseen.")}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            first, *rest = node.module.split(".")
            if first == "unseen":
                found |= {rest[0]} if rest else {alias.name for alias in node.names if alias.name in LAYER}
    return found


def wrong_imports(part: str, tree: ast.AST) -> list[str]:
    """The parts that a file of `part` imports and must not."""
    others = imported_parts(tree) - {part}
    if part in ALLOWED:
        return sorted(others - ALLOWED[part])
    layer = LAYER[part]
    equals = LAYERS[layer] if part in MAY_IMPORT_PEERS else set()
    return sorted(other for other in others if LAYER[other] >= layer and other not in equals)


def immediate_imports(tree: ast.Module) -> set[str]:
    """Libraries that are loaded when a module is imported: not in functions, not for types only."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def test_no_two_modules_share_a_name():
    names = Counter(path.name for path in SOURCE.rglob("*.py"))
    shared = sorted(name for name, count in names.items() if count > 1)
    assert set(shared) <= {"__init__.py", "base.py"}, "editor tabs and stack traces should be unambiguous"


def test_every_part_has_its_place():
    unplaced = sorted({part_of(path) for path in FILES} - LAYER.keys())
    assert not unplaced, f"say in LAYERS (and in docs/architecture.md) where {unplaced} stand"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    part = part_of(path)
    wrong = wrong_imports(part, ast.parse(path.read_text(encoding="utf-8")))
    assert not wrong, f"{path.name} in {part} imports from {wrong}, which stand(s) at or above it"


@pytest.mark.parametrize(
    ("part", "line", "wrong"),
    [
        ("data", "from unseen.federation import Federation", ["federation"]),
        ("training", "def f():\n    import unseen.engine.workers", ["engine"]),
        ("report", "from unseen import serving", ["serving"]),
        ("config", "from unseen.models import Network", ["models"]),
        ("engine", "from unseen.methods import Method\nfrom unseen import __version__", []),
        ("runner", "from unseen.runner.prepare import Setup", []),
    ],
)
def test_the_rule_itself(part, line, wrong):
    assert wrong_imports(part, ast.parse(line)) == wrong


@pytest.mark.parametrize(
    "path", [SOURCE / "__init__.py", *sorted((SOURCE / "cli").glob("*.py"))], ids=lambda path: path.name
)
def test_commands_name_no_heavy_library_at_their_top(path):
    assert not immediate_imports(ast.parse(path.read_text(encoding="utf-8"))) & HEAVY


def test_heavy_libraries_are_found_where_they_are():
    text = "import torch.nn\nif TYPE_CHECKING:\n    import altair\nwith x:\n    import timm\n"
    assert immediate_imports(ast.parse(text + "def f():\n    import onnx")) == {"torch", "timm"}


def test_help_loads_no_heavy_library():
    code = f"import sys, unseen, unseen.cli; print(*(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
