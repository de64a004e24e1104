"""Random numbers for stochastic rounding, by counter: a key and an element's index give 32 bits.

Nothing is drawn in sequence, so the bits depend neither on threads, device or blocking, nor on what
was rounded before, and a resumed or recomputed step repeats them. The hash is called
`floatscope-sr-1` and is fixed for good; its test vectors are in `tests/test_random_bits.py`.

The key is spread by SplitMix64's finalizer (Steele, Lea & Flood 2014) into two words; the index
passes through the two multiplications of Wellons' `lowbias32` hash (constants by TheIronBorn, 2018:
github.com/skeeto/hash-prospector, issue 19), the first word before them and the second between.
Both words matter: with the first alone, two keys would give the same numbers in another order.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass

NAME = "floatscope-sr-1"
MASK32 = 0xFFFF_FFFF
MASK64 = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
MULTIPLIERS = (0x21F0_AAAD, 0x735A_2D97)


@dataclass(frozen=True)
class StochasticKey:
    """What tells one stochastic rounding from every other of a training run.

    Recomputing a product (activation checkpointing) repeats its call number, and so its bits.
    """

    seed: int
    rank: int = 0
    step: int = 0
    micro_step: int = 0
    module: str = ""
    role: str = ""
    call: int = 0

    def value(self) -> int:
        """64 bits that depend on every field: the first of BLAKE2b over their text."""
        text = "\x1f".join([NAME, *map(str, astuple(self))])
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def words(key: int, high: int = 0) -> tuple[int, int]:
    """The two 32-bit words of a key for the elements whose index has `high` as its upper word."""
    z = (key + high * GOLDEN) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & MASK64
    z ^= z >> 31
    return z & MASK32, z >> 32


def random_bits(key: int, index: int) -> int:
    """The 32 bits of an element: `index` is its logical row-major position, up to 64 bits."""
    first, second = words(key, index >> 32)
    h = (index & MASK32) ^ first
    h = ((h ^ (h >> 16)) * MULTIPLIERS[0]) & MASK32
    h = (h + second) & MASK32
    h = ((h ^ (h >> 15)) * MULTIPLIERS[1]) & MASK32
    return h ^ (h >> 15)
