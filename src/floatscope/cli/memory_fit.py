"""`floatscope memory fit` and `selftest`: formulas alone, so neither loads Torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floatscope.memory.fit import Way
    from floatscope.memory.selftest import Check
    from floatscope.memory.states import Policy


@click.command()
@click.option("--params", help="Parameters: 27.8B, 350M, 7e9; from --shape if not given.")
@click.option("--device", "capacity", default="80GB", help="Memory of a device: 80GB, 80GiB, …")
@click.option("--recipe", default="bf16-mixed",
              help="A recipe, or a bookkeeping such as megatron-bf16 or bf16-pure.")  # fmt: skip
@click.option("--devices", type=click.IntRange(min=1), default=8, help="How many to split over.")
@click.option("--shape", help="layers=,width=,heads=,sequence=,batch=,vocab= for activations.")
@click.option("--recompute", default="none", help="none, selective or full.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fit(
    params: str | None,
    capacity: str,
    recipe: str,
    devices: int,
    shape: str | None,
    recompute: str,
    as_json: bool,
) -> None:
    """Does a model fit? States of each device, plain and split; activations with --shape."""
    from floatscope.cli.console import output, print_json
    from floatscope.errors import LedgerError, unknown
    from floatscope.memory import fit as sizes
    from floatscope.memory.formula import RECOMPUTE

    of = sizes.shape(shape) if shape is not None else None
    if params is None and of is None:
        raise LedgerError("name --params, such as 27.8B, or the model's --shape.")
    if recompute not in RECOMPUTE:
        raise LedgerError(unknown("recomputation", recompute, RECOMPUTE))
    if recompute != "none" and of is None:
        raise LedgerError("--recompute concerns activations; give the model's --shape too.")
    number = sizes.count(params) if params is not None else of.num_parameters if of else 0
    held, room = sizes.bookkeeping(recipe), sizes.size(capacity)
    each = sizes.element_bytes(recipe)
    found = list(sizes.ways(held, number, room, devices, of, recompute, each=each))  # type: ignore[arg-type]
    if as_json:
        print_json(_record(found, held, number, room))
    else:
        bits = 8 * each if of is not None else 0
        output.print(_table(found, held, number, room, bits), width=max(80, output.width))


def _record(ways: list[Way], held: Policy, number: int, room: int) -> dict[str, Any]:
    return {
        "unit": "bytes",
        "parameters": number,
        "bookkeeping": held.name,
        "bytes_a_parameter": float(held.total),
        "device_bytes": room,
        "ways": [
            {
                "name": way.name,
                "devices": way.devices,
                "states_bytes": way.states.total,
                "activations_bytes": way.activations.total,
                "total_bytes": way.total,
                "fits": way.total <= room,
                "smallest_number_of_devices": way.smallest,
            }
            for way in ways
        ],
    }


def _table(ways: list[Way], held: Policy, number: int, room: int, bits: int) -> Any:
    """The table; `bits` of an activation, 0 without activations."""
    from rich.console import Group

    from floatscope.cli.memory_tables import bullets, gigabytes, table, titled

    device = "{} GB = {} GiB".format(*gigabytes(room))
    title = (
        f"{number:,} parameters, {held.name}: {float(held.total):g} bytes each; {device} devices"
    )
    last = "fits" if bits else "fits; least\ndevices"
    headers = ["states\nGB", "activa-\ntions GB"] if bits else []
    totals = ("total\nGB", "total\nGiB")
    made = table("on each device", *headers, *totals, "of one\ndevice", last)
    for way in ways:
        parts = [gigabytes(ledger.total)[0] for ledger in (way.states, way.activations)]
        fits = "yes" if way.total <= room else "no"
        if not bits:
            fits += f"; {way.smallest if way.smallest is not None else 'never'}"
        share = f"{way.total / room:.2f}"
        name = way.name.replace("sequence", "seq.") if bits else way.name
        made.add_row(name, *(parts if bits else []), *gigabytes(way.total), share, fits)
    return Group(titled(title, made), bullets(_words(held, bits)))


def _words(held: Policy, bits: int) -> list[str]:
    from floatscope.cli.memory_tables import SIXTEEN

    each = ", ".join(
        f"{name} {float(size):g}"
        for name, size in (
            ("weights", held.parameters), ("gradients", held.gradients),
            ("master weights", held.master), ("first moment", held.first_moment),
            ("second moment", held.second_moment), ("other copies", held.other),
        )
        if size
    )  # fmt: skip
    lines = [f"Bytes a parameter: {each} ({held.source}){f'; {held.note}' if held.note else ''}."]
    if held.name in ("fp32", "autocast", "fp16-master"):
        lines.append(SIXTEEN)
    lines.append(
        "1 GB = 1e9 bytes, 1 GiB = 2^30. Left out: FSDP's gathered layers, communication buffers, "
        "workspace, fragmentation, the system's share of a device."
    )
    if bits:
        masks = ", which doubles its one-byte masks too" if bits == 32 else ""
        lines.append(
            f"Activations: the standard block in {bits} bits{masks} (Korthikanti et al. 2022, "
            "arXiv 2205.05198), first pipeline stage, with logits where the stage has the head. "
            "Another block saves other tensors: trace it."
        )
    else:
        lines.append(
            "Least devices: the fewest over which the way of that row makes it fit; never: no "
            "number of them is enough, since a part is not split. Activations come on top: give "
            "--shape, or trace the model."
        )
    return lines


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def selftest(as_json: bool) -> None:
    """Compute published tables again, to the printed digits. Exit status 3 if one differs."""
    from floatscope.cli.console import output, print_json
    from floatscope.memory.selftest import selftest as checks

    found = checks()
    failed = [check for check in found if not check.agrees]
    near = sum(check.within > 0 for check in found)
    if as_json:
        print_json([check._asdict() for check in found])
    else:
        output.print(_selftest_table(found), width=max(80, output.width), highlight=False)
        state = "all agree" if not failed else f"{len(failed)} differ"
        output.print(
            f"{len(found)} published figures: {state}; {len(found) - near} are held to the printed "
            f"digits, {near} were measured on a device and are held to the share behind ≈.",
            width=80,
        )
    if failed:
        raise click.exceptions.Exit(3)


def _selftest_table(found: list[Check]) -> Any:
    """Figures under the sources that printed them."""
    from rich.console import Group
    from rich.text import Text

    from floatscope.cli.memory_tables import cut, paragraph

    lines = [Text(f"{'published figures, computed again':42}{'published':>20}{'here':>9}")]
    for source in dict.fromkeys(check.source for check in found):
        heading = paragraph(source)
        heading.stylize("italic")
        lines += [Text(""), heading]
        for check in found:
            if check.source != source:
                continue
            mark = f"≈ {100 * check.within:g} %" if check.within else ""
            mark = mark if check.agrees else "differs"
            printed = f"{check.published} {check.unit}".rstrip()
            line = f"{cut(check.what, 41):42}{printed:>20}{check.ours:>9}  {mark}"
            lines.append(Text(line.rstrip()))
    return Group(*lines, Text(""))
