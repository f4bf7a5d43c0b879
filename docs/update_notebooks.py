"""Run the notebooks of docs/notebooks from top to bottom and write their outputs into them.

python docs/update_notebooks.py [NAME ...]

Each runs in an empty folder, on data that comes with Unseen. Outputs of progress, which are empty at the end,
times and identifiers of cells are left out, so that a second call writes the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
SECONDS_PER_CELL = 300


def run_notebook(path: Path) -> Any:
    """Run a notebook in an empty folder; a cell that fails is an error."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=SECONDS_PER_CELL, resources={"metadata": {"path": folder}}, record_timing=False
        )
        client.execute()
    return clean(notebook)


def clean(notebook: Any) -> Any:
    """Remove what differs between two runs, and empty outputs."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _has_content(output)]
            for output in cell.outputs:
                output.pop("transient", None)
    return notebook


def _has_content(output: Any) -> bool:
    return output.output_type == "stream" or any(output.get("data", {"error": 1}).values())


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or file.stem in sys.argv[1:]:
            nbformat.write(run_notebook(file), file)
            print(file.name)
