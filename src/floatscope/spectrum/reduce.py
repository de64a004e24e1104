"""The spectrum of what is spread over the ranks of torch.distributed.

Two collective calls, however many ranks and elements there are. The first finds maxima: how far
the octaves of all ranks reach, the largest magnitude, and whether something speaks against a sum.
The second adds up a dense table of these octaves. Both are of int64, on a device that the group's
backend serves; the table takes some 20 kB for most fp32 tensors, and 113 kB at most. Square sums,
which may exceed int64, travel in parts of 32 bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from floatscope.errors import SpectrumError
from floatscope.spectrum.cells import STRIDE
from floatscope.spectrum.spectrum import COUNTED, Spectrum
from floatscope.spectrum.storage import check

if TYPE_CHECKING:
    import torch

_MOST_OCTAVES = 2**16
"""Thirty times those of fp64; a table of so many takes some 50 MB."""
_NOWHERE = -(2**40)
_PART_BITS = 32
_NUM_PARTS = 3  # a square sum is below 2^91: fewer than 2^63 elements, each below or at 2^28


def all_reduce(spectrum: Spectrum, group: Any = None) -> Spectrum:
    """The exact sum of the spectra of all ranks, on every rank.

    Every rank of the group calls it, each with its own spectrum, which may be empty. With NCCL the
    call uses the process's current CUDA device (`torch.cuda.set_device`) and waits for it.

    Args:
        spectrum: of this rank.
        group: a `torch.distributed.ProcessGroup` that this rank belongs to; None for all ranks.

    Raises:
        SpectrumError: torch.distributed is not initialized, or this rank is not in the group. On
            all ranks at once: some rank's spectrum breaks a rule (see `storage.check`), they span
            more than 65,536 octaves, or their sum could hold 2^63 elements.
    """
    device, num_ranks = _device_and_size(group)
    fault = _fault(spectrum)
    # A rank with a fault takes part in the first call, or the others would wait for it forever.
    local = _reach(Spectrum.empty() if fault else spectrum, is_faulty=bool(fault))
    reach = _collected(np.array(local, np.int64), group, device, "MAX").tolist()
    is_faulty, highest, below, num_classes, most, *measured = reach
    octaves = range(-below, highest + 1)
    if is_faulty:
        raise SpectrumError(fault or "the spectrum of another rank is damaged; see its error.")
    if len(octaves) > _MOST_OCTAVES:
        raise SpectrumError(f"spectra over {len(octaves)} octaves cannot be added up at once.")
    if most * num_ranks >= 2**63:
        raise SpectrumError(f"{num_ranks} times {most} elements are too many to count in int64.")
    table = _collected(_table(spectrum, octaves, num_classes), group, device, "SUM")
    return _spectrum(table, octaves, num_classes, measured)


def _device_and_size(group: Any) -> tuple[torch.device, int]:
    """A device that the group's backend serves, the CPU if it can, and the number of ranks."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise SpectrumError(
            "torch.distributed is not initialized: there are no ranks to add up spectra of. Call "
            "torch.distributed.init_process_group first, as torchrun's programs do."
        )
    if dist.get_rank(group) < 0:
        raise SpectrumError("this process is not in that group; only ranks in it can add up.")
    # Such as "cpu:gloo,cuda:nccl".
    served = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in served else served[0]), dist.get_world_size(group)


def _fault(spectrum: Spectrum) -> str:
    try:
        check(spectrum)
    except SpectrumError as error:
        return str(error)
    return ""


def _reach(spectrum: Spectrum, *, is_faulty: bool) -> list[int]:
    """What the maximum over ranks is taken of."""
    octaves = spectrum.octaves
    counted = [int(getattr(spectrum, name)) for name in COUNTED]
    return [
        is_faulty,
        octaves[-1] if octaves else _NOWHERE,
        -octaves[0] if octaves else _NOWHERE,
        int((spectrum.keys % STRIDE).max(initial=0)) + 1,
        max(spectrum.num_finite_nonzero, *counted),
        struct.unpack(">q", struct.pack(">d", spectrum.amax))[0],  # ordered like the floats
        spectrum.fraction_bits,
        _NOWHERE if spectrum.finest is None else -spectrum.finest,
    ]


def _table(spectrum: Spectrum, octaves: range, num_classes: int) -> NDArray[np.int64]:
    """[counts by octave and class][parts of the square sums, by octave][COUNTED], flat."""
    octave, number = np.divmod(spectrum.keys, STRIDE)
    cells = np.zeros((len(octaves), num_classes), np.int64)
    squares = np.zeros((len(octaves), _NUM_PARTS), np.int64)
    if octaves:
        cells[octave - octaves[0], number] = spectrum.counts
    for e, square in spectrum.squares.items():
        for part in range(_NUM_PARTS):
            squares[e - octaves[0], part] = int(square) >> part * _PART_BITS & 2**_PART_BITS - 1
    counted = np.array([getattr(spectrum, name) for name in COUNTED], np.int64)
    return np.concatenate((cells.ravel(), squares.ravel(), counted))


def _collected(
    numbers: NDArray[np.int64], group: Any, device: torch.device, operation: str
) -> NDArray[np.int64]:
    """One collective call."""
    import torch
    import torch.distributed as dist

    shared = torch.from_numpy(numbers).to(device)
    dist.all_reduce(shared, getattr(dist.ReduceOp, operation), group)
    return shared.cpu().numpy()


def _spectrum(
    table: NDArray[np.int64], octaves: range, num_classes: int, measured: list[int]
) -> Spectrum:
    """The spectrum of a sum of tables, and of the maxima that concern what was measured."""
    amax, fraction_bits, minus_finest = measured
    num_cells = len(octaves) * num_classes
    where = np.flatnonzero(table[:num_cells])
    octave, number = np.divmod(where, num_classes)
    keys = STRIDE * (octave + (octaves[0] if octaves else 0)) + number
    parts = table[num_cells : -len(COUNTED)].reshape(-1, _NUM_PARTS).tolist()
    squares = {
        e: sum(part << i * _PART_BITS for i, part in enumerate(held))
        for e, held in zip(octaves, parts, strict=True)
        if any(held)
    }
    return Spectrum(
        keys=keys.astype(np.int32),
        counts=table[where],
        squares=squares,
        **dict(zip(COUNTED, table[-len(COUNTED) :].tolist(), strict=True)),
        amax=struct.unpack(">d", struct.pack(">q", amax))[0],
        fraction_bits=fraction_bits,
        finest=None if minus_finest == _NOWHERE else -minus_finest,
    )
