"""A method is a choice on four axes that do not know of each other.

    step   may a whole pass be skipped?               none, or of the rivals teacache, flowcache
    cache  what is remembered of a frame              dense | window_sink | tempcache | tempcache_paper,
                                                      or of the rivals random, uniform, flowcache
    attn   which part of the past is read             all, annsa, prompt_buckets,
                                                      or of the rivals topk, radial, sta, svg1, svg2
    cross  which tokens of the prompt are read        all, or annca

`dense` is (none, dense, all, all), `fast-ar` is (none, tempcache, annsa, annca). A rival is one more kind on
one of the axes, see `rivals`. Whatever is chosen ends in one call, `attend(q, k, v, bias)`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from .annca import AnnCA
from .annsa import AnnSA
from .attention import attend
from .memory import Dense, Memory, Pattern
from .prompt_buckets import PromptBuckets
from .rivals import (
    R1KV,
    SVG1,
    SVG2,
    FlowCacheSteps,
    Radial,
    RandomEviction,
    SlidingTiles,
    TeaCache,
    TopK,
    UniformFrames,
)
from .rope import AxialRope
from .tempcache import TempCache
from .tempcache_paper import TempCachePaper
from .window import WindowSink

CACHES: dict[str, Callable[..., Memory]] = {
    "dense": Dense,
    "window_sink": WindowSink,
    "tempcache": TempCache,
    "tempcache_paper": TempCachePaper,
    "random": RandomEviction,
    "uniform": UniformFrames,
    "flowcache": R1KV,
}
PATTERNS: dict[str, Callable[..., Pattern]] = {
    "annsa": AnnSA,
    "prompt_buckets": PromptBuckets,
    "topk": TopK,
    "radial": Radial,
    "sta": SlidingTiles,
    "svg1": SVG1,
    "svg2": SVG2,
}
STEPS: dict[str, Callable[..., "Step"]] = {"teacache": TeaCache, "flowcache": FlowCacheSteps}
CROSSES: dict[str, Callable[..., "Cross"]] = {"annca": AnnCA}
Node = Mapping[str, Any]  # {"kind": a name on the axis, and its options}


class Cross(Protocol):
    """How a frame reads the prompt."""

    def read(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Attention of q [b, h, n, d] to prompt tokens k, v [b, h, l, d] with a bias [b, l]."""
        ...


class WholePrompt:
    """Every token of the prompt."""

    def read(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attend(q, k, v, bias)


class Step(Protocol):
    """Which passes of a frame are skipped: the prediction of the pass before them stands.

    The first pass is always run, for it also remembers the frame before. Of a pass it is told the embedding
    of the noise level [1, width] and those of the noisy tokens [b, n, width].
    """

    @property
    def fixed(self) -> bool:
        """Whether it decides without looking at a tensor, so that a CUDA graph may hold what it decides."""
        ...

    def begin(self, level: Tensor, tokens: Tensor) -> None:
        """A frame begins with this pass."""
        ...

    def skips(self, nth: int, of: int, level: Tensor, tokens: Tensor) -> Tensor:
        """Which games skip pass `nth` of `of`, from 0: bool [b], or [] on the host for all of them."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Method:
    """`cache` makes a memory of so many layers with a rope, `cross` reads the prompt, `step` skips passes."""

    cache: Callable[[int, AxialRope], Memory]
    cross: Cross
    step: Step | None = None


def method(
    cache: Node,
    attn: Node | None = None,
    cross: Node | None = None,
    step: Node | None = None,
    *,
    caches: Mapping[str, Callable[..., Memory]] = CACHES,
) -> Method:
    """The method of a configuration: each axis names its kind, `{"kind": "tempcache", "far": 1120}`.

    `caches` are the kinds of memory to choose from. Raises ValueError for a kind that does not exist, for
    options that it does not have and for a pattern that its cache cannot serve.
    """
    pattern = _make("attn", PATTERNS, attn) if attn else None
    kind, options = _kind("cache", caches, cache)
    if attn and pattern and pattern.numbered and _merges(kind):
        whole = ", ".join(name for name, other in caches.items() if not _merges(other))
        raise ValueError(
            f"attn {attn['kind']} goes by when and where each key was seen, and cache {cache['kind']} merges "
            f"keys of many frames; take a cache that does not: {whole}."
        )

    def make(layers: int, rope: AxialRope) -> Memory:
        return _fitting("cache", cache, lambda: kind(layers, rope, **options, pattern=pattern))

    reader = _make("cross", CROSSES, cross) if cross else WholePrompt()
    reader = pattern.listen(reader) if isinstance(pattern, PromptBuckets) else reader
    return Method(make, reader, _make("step", STEPS, step) if step else None)


def _merges(kind: Callable[..., Memory]) -> bool:
    return getattr(kind, "merges", False)


def _make(axis: str, kinds: Mapping[str, Callable[..., Any]], node: Node) -> Any:
    kind, options = _kind(axis, kinds, node)
    return _fitting(axis, node, lambda: kind(**options))


def _kind(
    axis: str, kinds: Mapping[str, Callable[..., Any]], node: Node
) -> tuple[Callable[..., Any], dict[str, Any]]:
    if node.get("kind") not in kinds:
        raise ValueError(f"{axis} has no kind {node.get('kind')!r}; there is {', '.join(kinds)}.")
    kind, options = kinds[node["kind"]], {k: v for k, v in node.items() if k != "kind"}
    known = inspect.signature(kind).parameters.values()
    names = [x.name for x in known if x.kind is x.KEYWORD_ONLY and x.name != "pattern"]
    if unknown := set(options) - set(names):
        raise ValueError(
            f"{axis} {node['kind']} has no option {', '.join(sorted(unknown))}; there is {', '.join(names)}."
        )
    return kind, options


def _fitting(axis: str, node: Node, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"The settings of {axis} {node['kind']} do not fit it: {error}.") from None
