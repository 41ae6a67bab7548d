"""The options of a SuperKernel scope in plans and searches: defaults, the normal form, the table for the documents.

Their values, and how they are written as one string, are on the side of the programs (``superkernel_options``).

Options that are legal but have no effect are accepted: ``normalise`` removes them, so that plans which compile to the
same thing are equal.
"""

import re
from collections.abc import Mapping

from sktune.core.plan import Option
from sktune.program.sktune_program import superkernel_options
from sktune.program.sktune_program.superkernel_options import MAX_AIC as MAX_AIC
from sktune.program.sktune_program.superkernel_options import MAX_AIV as MAX_AIV
from sktune.program.sktune_program.superkernel_options import SUPERKERNEL_OPTIONS as SUPERKERNEL_OPTIONS
from sktune.program.sktune_program.superkernel_options import TABLE, TYPES, types_in
from sktune.program.sktune_program.superkernel_options import check_options as check_options
from sktune.program.sktune_program.superkernel_options import parse as parse
from sktune.program.sktune_program.superkernel_options import render as render


def has_superkernel(device: str) -> bool:
    """Return whether the device named ``device`` (``torch.npu.get_device_name``) is an Atlas A3 or A2.

    TorchAir documents SuperKernel for these since release 26.0.0; their dies are called 910_93 and 910B.
    """
    return re.search(r"910_93|910B", device) is not None


def option_defaults() -> dict[str, Option]:
    """Return the default of each option, ``""`` for one that has no effect unless given."""
    return {option.name: option.default for option in TABLE}


def check_option(name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless a search may try ``name=value``.

    It may try what the compiler accepts, and ``""`` (not given) for an option that then has no effect.
    """
    if value != "" or option_defaults().get(name) != "":
        superkernel_options.check_option(name, value)


def normalise(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options that have an effect: option sets that compile to the same thing become equal.

    Defaults are removed; lists are sorted; ``early-start=2`` is removed beside ``stream-fusion=1``, with which
    sub-kernels are compiled without hooks, too. ``early-start=0`` is not: its full barriers remain on one stream.

    Raises:
        SpaceError: as ``check_options``.
    """
    check_options(options)
    effective: dict[str, Option] = {}
    for option in TABLE:
        value = options.get(option.name, option.default)
        if option.values is TYPES and value:
            value = ",".join(sorted(types_in(options, option.name)))
        if value != option.default:
            effective[option.name] = value
    if effective.get("stream-fusion") == 1 and effective.get("early-start") == 2:
        del effective["early-start"]
    return effective


def options_table() -> str:
    """Return all options as a Markdown table."""
    lines = [
        "| option | values | default | role | effect | documented | since |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for option in TABLE:
        default = "not given" if option.default == "" else option.default
        documented = "yes" if option.documented else "no"
        lines.append(
            f"| `{option.name}` | {option.values.description} | {default} | {option.role} | {option.effect} "
            f"| {documented} | {option.since or '-'} |"
        )
    return "\n".join(lines) + "\n"
