"""FAST-AR: attention for autoregressive video that stays small. Knows nothing of worlds or windows.

Axes throughout: b batch, h heads, n present tokens, m remembered tokens, d head width.
"""

from .annca import AnnCA
from .annsa import AnnSA
from .attach import attach
from .memory import Beside, Dense, Memory, Past, Pattern, Stats
from .method import CACHES, CROSSES, PATTERNS, STEPS, Cross, Method, Step, WholePrompt, method
from .prompt_buckets import PromptBuckets
from .rope import AxialRope
from .tempcache import TempCache
from .tempcache_paper import TempCachePaper
from .window import WindowSink

__all__ = [
    "CACHES", "CROSSES", "PATTERNS", "STEPS",
    "AnnCA", "AnnSA", "AxialRope", "Beside", "Cross", "Dense", "Memory", "Method", "Past", "Pattern",
    "PromptBuckets", "Stats", "Step", "TempCache", "TempCachePaper", "WholePrompt", "WindowSink", "attach",
    "method",
]  # fmt: skip
