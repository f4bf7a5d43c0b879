"""Time convolutions in float32 and bfloat16, as a program of its own: an illegal instruction ends only it.

Prints the speed of bfloat16 as a multiple of float32's. Imports nothing of the package, to start quickly.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPES = ((8, 64, 32), (8, 256, 8))
"""Images, channels and side of the maps: those of a ResNet-18 on 128 pixels, near its begin and its end."""
REPETITIONS = 5


def time_steps(maps: Tensor, weight: nn.Parameter, *, bfloat16: bool) -> float:
    """Return the seconds of one forward and backward pass."""
    started = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        out = functional.relu(functional.conv2d(maps, weight, padding=1))
    out.float().sum().backward()
    return time.perf_counter() - started


def measure_speedup() -> float:
    """Return how many times as fast bfloat16 is; the best of several alternating repetitions counts."""
    torch.set_num_threads(1)
    total = {True: 0.0, False: 0.0}
    for images, channels, side in SHAPES:
        maps = torch.randn(images, channels, side, side).to(memory_format=torch.channels_last)
        weight = nn.Parameter(torch.randn(channels, channels, 3, 3).to(memory_format=torch.channels_last))
        maps.requires_grad_()
        taken: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(REPETITIONS + 1):
            for bfloat16, seconds in taken.items():
                seconds.append(time_steps(maps, weight, bfloat16=bfloat16))
        for bfloat16, seconds in taken.items():
            total[bfloat16] += min(seconds[1:])
    return total[False] / total[True]


if __name__ == "__main__":
    print(measure_speedup())
