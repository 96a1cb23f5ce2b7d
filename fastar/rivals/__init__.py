"""Rival methods and controls, one file each, as further kinds on the axes of a method.

Written from their descriptions, for frames that come one at a time. Where they differ from their originals,
the files and the README say so.
"""

from .flowcache import R1KV, FlowCacheSteps
from .radial import Radial
from .random_eviction import RandomEviction
from .sta import SlidingTiles
from .svg1 import SVG1
from .svg2 import SVG2
from .teacache import TeaCache
from .topk import TopK
from .uniform import UniformFrames

__all__ = [
    "R1KV", "SVG1", "SVG2", "FlowCacheSteps", "Radial", "RandomEviction", "SlidingTiles", "TeaCache", "TopK",
    "UniformFrames",
]  # fmt: skip
