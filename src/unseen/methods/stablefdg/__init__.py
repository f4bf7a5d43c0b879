"""StableFDG: the method, the styles of inner maps that it moves, and its feature highlighter."""

from unseen.methods.stablefdg.stablefdg import StableFDG

__all__ = ["StableFDG"]
