"""The regions of a search, which compiles many plans: on all cores, and with what is known of their bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from sktune.backends.base import OnScope, ignore
from sktune.backends.inductor.exactness import bit_changing_operators
from sktune.backends.inductor.parallel_compile import compile_ahead
from sktune.core.plan import Options
from sktune.program.sktune_program.inductor.compiled_regions import (
    CompiledRegion,
    RegionCache,
    compile_region,
    device_type,
    identity,
)
from sktune.program.sktune_program.inductor.options import with_defaults
from sktune.program.sktune_program.inductor.regions import RegionSlot


@dataclass
class SearchedRegions(RegionCache):
    """Regions compiled in this process, by region and options."""

    has_built_wrapper: bool = False
    doubts: dict[tuple[str, Options], tuple[str, ...]] = field(default_factory=dict)

    def compile_all(self, slots: Sequence[RegionSlot], on_scope: OnScope = ignore) -> list[CompiledRegion]:
        """Return the compiled region of each slot; compile missing ones on all cores."""
        missing: dict[tuple[str, Options], RegionSlot] = {}
        for slot in slots:
            if identity(slot) not in self.compiled:
                missing.setdefault(identity(slot), slot)  # of scopes that share a region, the first
        # Other regions consist of many kernels, which Inductor already builds on all cores.
        single_files = [slot for slot in missing.values() if slot.options.get("cpp_wrapper")]
        if self.has_built_wrapper:
            compile_ahead({slot.label: partial(compile_region, slot) for slot in single_files}, on_scope)
        for slot in missing.values():
            on_scope(slot.label)
            self.compile(slot)
        self.has_built_wrapper |= bool(single_files)  # from now on, helpers find the headers and shims already built
        return [self.compile(slot) for slot in slots]

    def changes_bits(self, slot: RegionSlot) -> tuple[str, ...]:
        """Return the operators of the slot's region that may change bits; see ``bit_changing_operators``."""
        key = identity(slot)
        if key not in self.doubts:
            region, options = slot.region, with_defaults(slot.options)
            device = device_type(region.bound)
            self.doubts[key] = bit_changing_operators(region.kernels, region.bound, options, device)
        return self.doubts[key]
