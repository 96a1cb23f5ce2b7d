"""The paper's AnnSA: a token reads the far keys that are about the same word as itself, and no others."""

import pytest
import torch
from frames import HEADS, ROPE, TOKENS, WIDTH, film, normal
from torch.testing import assert_close

from fastar import Dense, PromptBuckets, TempCache, TempCachePaper, WholePrompt, WindowSink, method
from fastar.attention import attend_reference

EXACT = dict(rtol=0, atol=1e-12)
WORDS, RECENT = 3, 2
CACHES = {
    "dense": lambda pattern: Dense(2, ROPE, recent=RECENT, pattern=pattern),
    "window_sink": lambda pattern: WindowSink(2, ROPE, sink=1, recent=RECENT, pattern=pattern),
    "tempcache": lambda pattern: TempCache(2, ROPE, sink=1, recent=RECENT, far=30, pattern=pattern),
    "per head": lambda pattern: TempCache(
        2, ROPE, sink=1, recent=RECENT, far=30, per_head=True, pattern=pattern
    ),
    "paper": lambda pattern: TempCachePaper(2, ROPE, pattern=pattern),
}
each_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


def prompt(words: int = WORDS):
    """Keys and values [b, h, l, d], and a bias that hides the last of them from the second game."""
    k, v = normal(2, 2, HEADS, words, WIDTH, seed=7)
    bias = torch.zeros(2, words, dtype=torch.float64)
    if words > 1:
        bias[1, -1] = -torch.inf
    return 10 * k, v, bias


def dreamt(memory, cross, frames, words: int = WORDS):
    """A network of two layers: the second's answers. Queries of cross-attention are the frame's own."""
    answers = []
    for frame in frames:
        memory.attend(0, *frame)
        memory.commit(0)
        cross.read(frame.q, *prompt(words))
        answers.append(memory.attend(1, *frame))
        memory.commit(1)
    return answers


def words_of(frame) -> torch.Tensor:
    k, _, bias = prompt()
    return (frame.q @ k.mT * WIDTH**-0.5 + bias[:, None, None]).argmax(-1)  # [b, h, n]


def test_far_keys_of_another_word_are_not_read():
    """Against the definition, query by query."""
    frames = film(9, stay=0.0)
    pattern = PromptBuckets()
    answer = dreamt(CACHES["dense"](pattern), pattern.listen(WholePrompt()), frames)[-1]
    now, past = frames[-1], frames[:-1]
    far = len(past) - RECENT
    assert all((words_of(frame) != 0).any() for frame in frames)
    for b in range(2):
        for h in range(HEADS):
            for i in range(TOKENS):
                word = words_of(now)[b, h, i]
                kept = [(words_of(f)[b, h] == word) | (t >= far) | (t == 0) for t, f in enumerate(past)]
                kept.append(torch.ones(TOKENS, dtype=torch.bool))
                k = torch.cat([ROPE(f.k[b, h], f.where)[x] for f, x in zip(frames, kept, strict=True)])
                v = torch.cat([f.v[b, h][x] for f, x in zip(frames, kept, strict=True)])
                q = ROPE(now.q[b, h], now.where)[i : i + 1]
                expected = attend_reference(q[None, None], k[None, None], v[None, None])[0, 0, 0]
                assert_close(answer[b, h, i], expected, **EXACT)


@each_cache
def test_of_one_word_everything_is_about_that_word(make):
    frames, pattern = film(24), PromptBuckets()
    some = dreamt(make(pattern), pattern.listen(WholePrompt()), frames, words=1)
    whole = dreamt(make(None), WholePrompt(), frames, words=1)
    for a, b in zip(some, whole, strict=True):
        assert_close(a, b, **EXACT)


@each_cache
def test_a_saved_memory_knows_its_words(make):
    frames = film(24)
    first, second = PromptBuckets(), PromptBuckets()
    a, b = make(first), make(second)
    dreamt(a, first.listen(WholePrompt()), frames[:16])
    b.load_state_dict(a.state_dict())
    later = [dreamt(x, p.listen(WholePrompt()), frames[16:]) for x, p in ((a, first), (b, second))]
    assert all(torch.equal(x, y) for x, y in zip(*later, strict=True))


def test_a_merged_entry_is_about_what_its_newest_key_is():
    """One thing seen by all frames: the entry of each token has the word of the newest frame that left."""
    k = normal(2, HEADS, TOKENS, WIDTH, seed=5)
    frames = [frame._replace(k=k, where=film(1)[0].where) for frame in film(8)]
    pattern = PromptBuckets()
    memory = TempCache(2, ROPE, sink=0, recent=1, far=20, pattern=pattern)
    dreamt(memory, pattern.listen(WholePrompt()), frames)
    newest = words_of(frames[-2])
    tags = memory.tags[1, :, :, memory._whole : memory._whole + TOKENS, 0]
    assert torch.equal(tags.sort(-1).values.long(), newest.sort(-1).values)


def test_frames_of_one_pass_have_their_own_words():
    """The cross-attention of a pass over two frames is heard at once, and told one frame after the other."""
    one, two = film(2)
    pattern = PromptBuckets()
    k, _, bias = prompt()
    pattern.hear(torch.cat([one.q, two.q], 2), k, bias)
    for frame in (one, two):
        assert torch.equal(pattern.tag(1, frame.k).long(), words_of(frame))


def test_it_hears_the_cross_attention_of_its_method():
    chosen = method(
        {"kind": "dense", "recent": RECENT}, {"kind": "prompt_buckets"}, {"kind": "annca", "density": 1.0}
    )
    frames, pattern = film(9), PromptBuckets()
    found = dreamt(chosen.cache(2, ROPE), chosen.cross, frames)
    expected = dreamt(CACHES["dense"](pattern), pattern.listen(WholePrompt()), frames)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_first_passes_of_a_frame_may_read_everything():
    frames, pattern = film(9), PromptBuckets(dense_steps=1)
    memory = CACHES["dense"](pattern)
    dreamt(memory, pattern.listen(WholePrompt()), frames[:-1])
    whole = CACHES["dense"](None)
    dreamt(whole, WholePrompt(), frames[:-1])
    pattern.hear(frames[-1].q, *prompt()[::2])
    first = memory.attend(1, *frames[-1])
    pattern.hear(frames[-1].q, *prompt()[::2])
    second = memory.attend(1, *frames[-1])
    assert_close(first, whole.attend(1, *frames[-1]), **EXACT)
    assert not torch.allclose(first, second)


def test_the_first_layer_has_nothing_to_go_by():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        PromptBuckets(dense_layers=0)
