"""Run a grid of methods, held-out domains and seeds, and write its records and table.

    UNSEEN_DATA=... python benchmarks/grid.py results/rotated-mnist-12-rounds/grid.toml --work runs/grid

Every job is an ordinary run folder below --work: stopped at any time, the same command goes on. Finished runs
are collected into results.jsonl and table.md beside the grid file; nothing there is written by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Job = tuple[str, dict[str, Any]]


def jobs_of(grid: dict[str, Any]) -> list[Job]:
    """All jobs, one seed after another, so that a grid stopped early is still balanced."""
    jobs = []
    for seed in grid["seeds"]:
        for held_out in grid["hold_out"]:
            for label, options in grid["methods"].items():
                name = f"{label}-{held_out}-{seed}"
                jobs.append((name, {**grid["common"], **options, "hold_out": held_out, "seed": seed}))
    return jobs


def run_job(job: Job, work: Path) -> str:
    from unseen.config import RunConfig
    from unseen.run import run

    name, options = job
    config = RunConfig.from_mapping({**options, "workers": 1, "threads": 1})
    run(config, out=work / name, resume=True)
    return name


def collect(grid: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Results of the finished jobs, with the held-out accuracy of every round."""
    lines = []
    for name, options in jobs_of(grid):
        path = work / name / "result.json"
        if not path.exists():
            continue
        records = [json.loads(line) for line in (path.parent / "records.jsonl").read_text().splitlines()]
        curve = [
            round(score["metrics"]["accuracy"], 4)
            for record in records
            if record["event"] == "evaluation"
            for score in record["scores"]
            if score["split"] == "target"
        ]
        lines.append({"job": name, "options": options, **json.loads(path.read_text()), "target_curve": curve})
    return lines


def table(grid: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """Held-out accuracy in percent, by source validation and by oracle: mean and standard error."""
    heads = grid["hold_out"]
    text = [f"# {grid['title']}", "", grid["note"].strip(), ""]
    for rule, key in (
        ("source validation (honest)", "target"),
        ("oracle (best round on the target)", "target_oracle"),
    ):
        text += [f"## Selected by {rule}", "", "| method | " + " | ".join(heads) + " | mean | runs |"]
        text += ["|---" * (len(heads) + 3) + "|"]
        for label in grid["methods"]:
            mine = [line for line in lines if line["job"].startswith(f"{label}-")]
            cells, means = [], []
            for held_out in heads:
                values = [
                    100 * line["metrics"][key]["accuracy"] for line in mine if line["held_out"] == [held_out]
                ]
                cells.append(_cell(values))
                means += [statistics.mean(values)] if values else []
            whole = f"{statistics.mean(means):.2f}" if len(means) == len(heads) else "–"
            text.append(f"| {label} | " + " | ".join(cells) + f" | {whole} | {len(mine)} |")
        for label, row in grid.get("published", {}).get(key, {}).items():
            text.append(f"| {label} (published) | " + " | ".join(f"{value:g}" for value in row) + " | – |")
        text.append("")
    return "\n".join(text)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only", default="", help="run only jobs whose name begins with one of these, by commas"
    )
    parser.add_argument("--collect", action="store_true", help="run nothing, only write the results")
    given = parser.parse_args()
    grid = tomllib.loads(given.grid.read_text())
    wanted = tuple(given.only.split(",")) if given.only else ("",)
    todo = [
        job
        for job in jobs_of(grid)
        if job[0].startswith(wanted) and not (given.work / job[0] / "result.json").exists()
    ]
    if not given.collect:
        with ProcessPoolExecutor(given.processes, max_tasks_per_child=1) as pool:
            for done in as_completed([pool.submit(run_job, job, given.work) for job in todo]):
                print(done.result(), flush=True)
    lines = collect(grid, given.work)
    (given.grid.parent / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (given.grid.parent / "table.md").write_text(table(grid, lines))


if __name__ == "__main__":
    main()
