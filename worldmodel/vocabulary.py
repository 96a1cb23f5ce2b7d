"""Prompt text to word indices, over the closed vocabulary of the captions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .words import split

PAD, UNKNOWN = 0, 1


class Vocabulary:
    """Words to indices: 0 is padding, 1 an unknown word, the given words follow."""

    def __init__(self, words: Sequence[str], *, longest: int = 159) -> None:
        self.words = tuple(words)
        self.longest = longest
        self._index = {word: i + 2 for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words) + 2

    def indices(self, text: str) -> list[int]:
        """Indices of the words of a text, cut at `longest`."""
        return [self._index.get(word, UNKNOWN) for word in split(text)][: self.longest]

    def text(self, indices: Sequence[int]) -> str:
        """The words of indices, padding left out; an unknown one is `?`, which reads as no word."""
        return " ".join("?" if i == UNKNOWN else self.words[i - 2] for i in indices if i != PAD)

    def unknown(self, text: str) -> list[str]:
        """Words of a text that mean nothing here, each once, in order."""
        return list(dict.fromkeys(word for word in split(text) if word not in self._index))

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, list[str]]:
        """Texts to indices [b, l], padded to the longest of them; and all unknown words."""
        unknown = [word for text in texts for word in self.unknown(text)]
        return pad([self.indices(text) for text in texts]), list(dict.fromkeys(unknown))


def pad(rows: Sequence[Sequence[int]], length: int = 1) -> Tensor:
    """Rows of indices to one tensor [b, l], l at least `length`."""
    length = max([length, *(len(row) for row in rows)])
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows])
