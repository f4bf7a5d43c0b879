"""Peak memory of reading image Parquet, for sets of growing size: it must not grow with the set.

python benchmarks/parquet_memory.py --megabytes 128 512 2048 writes results/performance/parquet_memory.json.
Every set is generated, read in a process of its own into an empty cache, and removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

RECORD = Path(__file__).parents[1] / "results" / "performance" / "parquet_memory.json"
SIDE = 512
"""Side of the generated images, which are stored without compression: 768 KiB each."""
ROWS_PER_GROUP = 100
"""Rows per row group, as the library `datasets` writes images."""
PER_SHARD = 512

READ = """
import re, sys
from pathlib import Path
def peak():
    # getrusage would count the parent's memory before exec as well
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
from unseen.data import DataRequest, load_data
from unseen.data.images.parquet_images import ParquetImagesFormat
before = peak()
data = load_data(DataRequest(sys.argv[1], image_size=64))
print(len(data), before, peak())
"""


def write_set(folder: Path, megabytes: int) -> tuple[int, int]:
    """Write shards with about as many megabytes of images; return the numbers of images and bytes."""
    pixels = np.random.default_rng(0).integers(0, 255, SIDE * SIDE * 3, dtype=np.uint8).tobytes()
    header = b"P6 %d %d 255\n" % (SIDE, SIDE)
    count = megabytes * 2**20 // len(pixels)
    shards = -(-count // PER_SHARD)
    for shard in range(shards):
        path = folder / f"train-{shard:05}-of-{shards:05}.parquet"
        numbers = range(shard * PER_SHARD, min((shard + 1) * PER_SHARD, count))
        writer = None
        for start in range(numbers.start, numbers.stop, ROWS_PER_GROUP):
            part = range(start, min(start + ROWS_PER_GROUP, numbers.stop))
            images = [{"bytes": header + n.to_bytes(4, "big") + pixels[4:], "path": None} for n in part]
            columns = {
                "image": images,
                "domain": ["ab"[n // 2 % 2] for n in part],
                "label": [n % 2 for n in part],
            }
            table = pyarrow.table(columns)
            writer = writer or parquet.ParquetWriter(
                path, table.schema, compression="none", use_dictionary=["domain"]
            )
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return count, sum(path.stat().st_size for path in folder.iterdir())


def measure(megabytes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "set"
        folder.mkdir()
        count, size = write_set(folder, megabytes)
        environment = {**os.environ, "UNSEEN_CACHE": str(Path(scratch) / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", READ, str(folder)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
    read, before, peak = map(int, done.stdout.split())
    if read != count:
        raise SystemExit(f"read {read} of {count} images")
    return {
        "images": count,
        "parquet_mib": round(size / 2**20, 1),
        "rss_before_mib": round(before / 2**10, 1),
        "peak_rss_mib": round(peak / 2**10, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    rows = []
    for megabytes in given.megabytes:
        rows.append(measure(megabytes))
        print(rows[-1], flush=True)
    about = {"image_side": SIDE, "rows_per_group": ROWS_PER_GROUP, "decoded_side": 64}
    given.out.write_text(json.dumps({**about, "sets": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
