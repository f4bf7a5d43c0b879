"""Batch norm with frozen statistics: a layer that stays in evaluation mode while its network trains."""

from __future__ import annotations

from typing import Any, Self

from torch.nn.modules.batchnorm import _BatchNorm


class FrozenStatistics(_BatchNorm):
    """Batch norm that stays in evaluation mode: it uses its running statistics and does not update them.

    Mixed into a layer's own class by `keep_statistics`, so that names of tensors, type checks and what the
    layer computes besides (the activation of timm's layers) stay as they are. Copies and pickles keep it.
    """

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the layer's parts, but not of the layer itself."""
        super().train(mode)
        self.training = False
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty_frozen, (type(self).__bases__[1],), self.__getstate__()  # type: ignore[no-untyped-call]


_CLASSES: dict[type[_BatchNorm], type[FrozenStatistics]] = {}


def _frozen_class(kind: type[_BatchNorm]) -> type[FrozenStatistics]:
    """Return the frozen variant of a layer's class, always the same one."""
    if kind not in _CLASSES:
        _CLASSES[kind] = type(f"Frozen{kind.__name__}", (FrozenStatistics, kind), {})
    return _CLASSES[kind]


def _empty_frozen(kind: type[_BatchNorm]) -> FrozenStatistics:
    """Create a layer whose state is still to be set, for unpickling."""
    made = _frozen_class(kind)
    return made.__new__(made)


def keep_statistics(layer: _BatchNorm) -> None:
    """Turn a batch-norm layer into one with frozen statistics, in place."""
    if not isinstance(layer, FrozenStatistics):
        layer.__class__ = _frozen_class(type(layer))
    layer.training = False
