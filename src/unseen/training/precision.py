"""The precision of networks' forward passes: what a device supports, and what `--precision auto` chooses.

Whether bfloat16 is faster on a processor depends on its instructions, and in some virtual machines one of
them ends the process. So it is tried and timed in a child process, once per machine.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unseen.checksums import json_with_sum, parse_json_with_sum
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.fileio import cache_folder, write_text
from unseen.models import Network, Precision
from unseen.models.mkldnn import BlockedStage

PRECISIONS: tuple[str, ...] = ("float32", "bfloat16", "auto")
FASTER = 1.2
"""Smallest measured speedup for which `auto` chooses bfloat16."""
LARGE_NETWORK = 1_000_000
"""Fewest parameters of a network for which `auto` considers bfloat16; smaller ones were not faster."""
LARGE_IMAGE = 32
"""Side in pixels above which `auto` considers bfloat16."""
IMAGE_DIMENSIONS = 3
_TIME_LIMIT = 120.0
_PROBE = Path(__file__).with_name("precision_probe.py")


class Bfloat16Speed(NamedTuple):
    """What is known about bfloat16 on a processor.

    speedup  measured speed as a multiple of float32's; 0 = unusable
    reason   why it is unusable
    """

    speedup: float
    reason: str = ""


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse an unknown precision, and bfloat16 where the processor cannot compute it."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "bfloat16" and device.type == "cpu":
        found = processor_speed()
        if not found.speedup:
            raise UsageError(
                f"--precision bfloat16 does not work on this processor ({found.reason}): use float32 or auto"
            )


def choose_precision(
    precision: str, device: torch.device, *, network: Network, input_shape: tuple[int, ...]
) -> Precision:
    """Resolve `auto`: bfloat16 where it is supported and faster, for networks that gain by it."""
    if precision == "float32":
        return "float32"
    on_cpu = device.type == "cpu"
    if precision == "bfloat16":
        if on_cpu and (layer := layer_with_tiny_maps(network, input_shape)):
            raise UsageError(
                f"--precision bfloat16: the stride of convolution {layer!r} is larger than its maps, and "
                "processors compute its gradient wrongly in bfloat16: use a larger --image-size, or float32"
            )
        return "bfloat16"
    if not _is_large(network, input_shape):
        return "float32"
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    fast = (
        on_cpu
        and _is_convolutional(network)
        and processor_speed().speedup >= FASTER
        and not layer_with_tiny_maps(network, input_shape)
    )
    return "bfloat16" if fast else "float32"


def _is_large(network: Network, input_shape: tuple[int, ...]) -> bool:
    """Check whether a network and its images are large enough to gain by bfloat16."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    on_images = len(input_shape) == IMAGE_DIMENSIONS and min(input_shape[1:]) > LARGE_IMAGE
    return parameters > LARGE_NETWORK and on_images


def _is_convolutional(network: Network) -> bool:
    """Check whether a network is of the kind that was measured faster on processors, such as a ResNet.

    That is: most parameters are in ordinary convolutions. Depthwise ones train more slowly in bfloat16,
    vision transformers hardly faster, and maps in blocks (`BlockedStage`) are faster still.
    """
    layers = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    inside = sum(layer.weight.numel() for layer in layers)
    return (
        all(layer.groups == 1 for layer in layers)
        and 2 * inside > sum(parameter.numel() for parameter in network.parameters())
        and not any(isinstance(part, BlockedStage) for part in network.modules())
    )


def layer_with_tiny_maps(network: Network, input_shape: tuple[int, ...]) -> str:
    """Return the name of a convolution whose stride is larger than its input maps, or "".

    oneDNN leaves a part of such a layer's weight gradient uninitialized in bfloat16 (seen in PyTorch 2.13).
    """
    found: list[str] = []

    def watch(name: str, layer: nn.Conv2d, maps: Tensor) -> None:
        wide = max(layer.kernel_size) > 1
        if wide and any(side < step for side, step in zip(maps.shape[-2:], layer.stride, strict=True)):
            found.append(name)

    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: watch(name, layer, given[0]))
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    modes = {part: part.training for part in network.modules()}
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, *input_shape))
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training
    return found[0] if found else ""


def processor_speed() -> Bfloat16Speed:
    """Return this processor's speed with bfloat16: from the cache folder, or measured now."""
    if not has_bfloat16():
        return Bfloat16Speed(0.0, "PyTorch reports no support")
    path, key = cache_folder() / "bfloat16.json", _processor()
    known = _read(path)
    if key in known:
        return Bfloat16Speed(*known[key])
    try:
        found = probe_processor()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Bfloat16Speed(0.0, f"a test did not finish: {type(error).__name__}")
    with suppress(UnseenError):  # without a cache it is measured again next time
        write_text(path, json_with_sum({**known, key: list(found)}))
    return found


def has_bfloat16() -> bool:
    """Check whether PyTorch's CPU kernels support bfloat16 on this processor, natively or emulated."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def probe_processor(program: Path = _PROBE) -> Bfloat16Speed:
    """Time bfloat16 in a child process."""
    done = subprocess.run(
        [sys.executable, "-P", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIME_LIMIT,
    )
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return Bfloat16Speed(0.0, f"a test ended with {how}")
    return Bfloat16Speed(float(done.stdout))


def _processor() -> str:
    """Name the processor and the version of PyTorch."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = [line for line in lines if line.startswith(("model name", "cpu family", "model\t", "stepping"))]
    return "; ".join([name, *(line.partition(":")[2].strip() for line in known[:4]), torch.__version__])


def _read(path: Path) -> dict[str, tuple[float, str]]:
    try:
        values = parse_json_with_sum(path.read_text(encoding="utf-8"))
        return {key: (float(speedup), str(reason)) for key, (speedup, reason) in values.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
