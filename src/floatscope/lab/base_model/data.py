"""Characters as numbers, and batches of them.

Shape suffixes: B = sequences, T = characters of one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.errors import TextError
from floatscope.lab.text.world import ALPHABET


class CharTokenizer:
    """One number a character: its place in the alphabet."""

    def __init__(self, alphabet: str = ALPHABET) -> None:
        self.alphabet = alphabet
        self._places = {character: place for place, character in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        """The number of each character.

        Raises:
            TextError: a character that is not in the alphabet.
        """
        try:
            return [self._places[character] for character in text]
        except KeyError as error:
            raise TextError(
                f"the character {error.args[0]!r} is not one of the {len(self.alphabet)} of this "
                f"tokenizer's alphabet: {self.alphabet!r}."
            ) from None

    def decode(self, numbers: list[int]) -> str:
        """The text that `encode` gave these numbers for."""
        return "".join(self.alphabet[number] for number in numbers)


def get_batch(
    data_T: Tensor, size: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """So many windows of a text at random places, and for each character the one that follows.

    Args:
        data_T: the encoded text, int64.
        size: windows.
        context: characters of each.
        generator: draws the places, with replacement.

    Returns:
        Two int64 tensors (size, context): inputs and targets.

    Raises:
        TextError: the text is shorter than one window and the character after it.
    """
    if len(data_T) <= context:
        raise TextError(
            f"a window of {context} characters and the one after it do not fit into {len(data_T)}."
        )
    starts_B = torch.randint(len(data_T) - context, (size,), generator=generator)
    windows_BT = data_T[starts_B[:, None] + torch.arange(context + 1)]
    return windows_BT[:, :-1].contiguous(), windows_BT[:, 1:].contiguous()
