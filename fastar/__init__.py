"""FAST-AR: attention for autoregressive video that stays small. Knows nothing of worlds or windows.

Axes throughout: b batch, h heads, n present tokens, m remembered tokens, d head width.
"""

from .memory import Dense, Memory, Stats
from .rope import AxialRope
from .tempcache import TempCache
from .window import WindowSink

MEMORIES = {"dense": Dense, "window_sink": WindowSink, "tempcache": TempCache}

__all__ = ["MEMORIES", "AxialRope", "Dense", "Memory", "Stats", "TempCache", "WindowSink"]
