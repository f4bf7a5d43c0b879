"""What tests of judging across sites share: a tiny run, and policies that allow it."""

from __future__ import annotations

from pathlib import Path

from tiny_sites import tiny_job

from unseen.runner.run import run

ALLOWS = 'min_group = 5\n[judge]\nallow = true\nonnx = true\ngroup_columns = ["kind"]\n'


def train_two(images: Path, folder: Path) -> tuple[Path, Path]:
    """Two models on the same sites, of one and of three rounds."""
    runs = [
        run(tiny_job(images, rounds=rounds, lr=0.05), out=folder / f"run{rounds}").folder for rounds in (1, 3)
    ]
    return runs[0], runs[1]
