"""Turns the operators of the whole model into those of one die of its published deployment.

The published DeepSeek-V3 does not fit on one die, and is not deployed as one program. Two rewrites of its operators:

* Routed experts are distributed over ``expert_dies`` dies, each of which decodes a batch of the same size. A die only
  reads the weights of its own experts, computes as many rows as it sends away, and waits for dispatch and combine.
  Everything else (attention, dense MLPs, shared experts, head) is replicated on every die.
* Latent attention (MLA) multiplies the query and the output by the up-projection, instead of expanding the whole cache
  in every step ("weight absorption"), and so reads the latent cache directly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil, log2, prod

from sktune.sim.constants import Constants
from sktune.sim.operators import Operator, numbered
from sktune.sim.trace import ATTENTION, GROUPED_MATMUL, hit_share

DISPATCH, COMBINE = "MoeDistributeDispatch", "MoeDistributeCombine"
_UP_PROJECTION = "kv_b_proj"
"""The name in DeepSeek's models of the projection from the latent cache to keys and values."""
WIDTH_BYTES = {"int8": 1, "bf16": 2, "fp32": 4}


def deploy(operators: Sequence[Operator], constants: Constants) -> tuple[Operator, ...]:
    """Return the tasks of one die; a model without routed experts and latent attention is unchanged."""
    return numbered(list(_spread_experts(list(_absorb(operators)), constants)))


def deployment_notes(operators: Sequence[Operator], constants: Constants) -> str:
    """Return what ``deploy`` assumes, in a few words for the target's description; empty if it changes nothing."""
    notes = []
    experts = {operator.shapes[1][0] for operator in operators if operator.type == GROUPED_MATMUL}
    if experts:
        dies = _dies(max(experts), constants)
        notes.append(f"{max(experts)} routed experts over {dies} dies, everything else on each die")
    if any(_is_expansion(operator) for operator in operators):
        notes.append("latent attention absorbed")
    return f"simulated as one die of a deployment: {', '.join(notes)}" if notes else ""


def _is_expansion(operator: Operator) -> bool:
    return operator.module.endswith(f".{_UP_PROJECTION}") and operator.core == "cube"


def _absorb(operators: Sequence[Operator]) -> Iterator[Operator]:
    index = 0
    while index < len(operators):
        operator = operators[index]
        end = _attention_after(operators, index) if _is_expansion(operator) else None
        if end is None:
            yield operator
            index += 1
            continue
        yield from _absorbed(operator, operators[end])
        index = end + 1


def _attention_after(operators: Sequence[Operator], start: int) -> int | None:
    """Return the index of the attention that reads the expanded cache, None if it is not in the same module."""
    module = operators[start].module.rpartition(".")[0]
    for index in range(start + 1, len(operators)):
        if not operators[index].module.startswith(module):
            return None
        if operators[index].type == ATTENTION:
            return index
    return None


def _absorbed(expansion: Operator, attention: Operator) -> Iterator[Operator]:
    """Yield query times up-projection, attention over the latent cache, and output times up-projection."""
    query, key, value = attention.shapes[:3]
    latent, width = expansion.shapes[-1][0], WIDTH_BYTES[attention.dtype]
    rows, heads, cached = prod(query[:1] + query[2:-1]), query[1], key[-2]
    rope = query[-1] - (expansion.shapes[-1][1] // heads - value[-1])
    matmul = replace(expansion, type="BatchMatMulV2", blocks=attention.blocks)
    for side, inner in (("query", query[-1] - rope), ("output", value[-1])):
        if side == "output":
            yield replace(
                attention,
                flops=2.0 * rows * heads * cached * (2 * latent + rope),
                bytes_moved=float(width * (query[0] * cached * (latent + rope) + rows * heads * (2 * latent + rope))),
                shapes=((rows, heads, latent + rope), (query[0], cached, latent + rope)),
            )
        yield replace(
            matmul,
            name=f"{expansion.module}/{side}",
            flops=2.0 * rows * heads * inner * latent,
            bytes_moved=float(width * heads * (inner * latent + rows * (inner + latent))),
            shapes=((heads, rows, inner), (heads, inner, latent)),
        )


def _spread_experts(operators: Sequence[Operator], constants: Constants) -> Iterator[Operator]:
    modules = {operator.module for operator in operators if operator.type == GROUPED_MATMUL}

    def experts_of(operator: Operator) -> str | None:
        inner = operator.module
        # An activation inside the experts is a separate module.
        return next((module for module in (inner, inner.rpartition(".")[0]) if module in modules), None)

    for experts, run in groupby(operators, key=experts_of):
        inside = list(run)
        if experts is None:
            yield from inside
            continue
        dies = _dies(next(op for op in inside if op.type == GROUPED_MATMUL).shapes[1][0], constants)
        yield _collective(DISPATCH, inside[0], dies, constants)
        for operator in inside:
            if operator.type != GROUPED_MATMUL:
                yield operator
                continue
            # Over a die's own experts: as many rows as before, fewer weights.
            rows, count = operator.shapes[0][0], operator.shapes[1][0]
            weights = prod(operator.shapes[1]) * WIDTH_BYTES[operator.dtype]
            local = max(1, ceil(count / dies))
            read = local / count * hit_share(rows, local)
            yield replace(operator, bytes_moved=operator.bytes_moved + weights * (read - hit_share(rows, count)))
        yield _collective(COMBINE, inside[-1], dies, constants)


def _dies(experts: int, constants: Constants) -> int:
    """Return over how many dies the experts are distributed: no expert is on two."""
    return min(experts, int(constants.deployment.expert_dies.value))


def _collective(kind: str, beside: Operator, dies: int, constants: Constants) -> Operator:
    """Return a collective with the published latency, interpolated logarithmically between 8 and 256 dies."""
    name = "dispatch" if kind == DISPATCH else "combine"
    few, many = constants[f"{name}_ep8_us"], constants[f"{name}_ep256_us"]
    share = log2(max(dies, 1) / 8) / log2(256 / 8)
    return Operator(
        name=f"{beside.module}/{kind}",
        type=kind,
        core="communication",
        unit=beside.unit,
        stream=beside.stream,
        blocks=int(constants["aiv_cores"]),
        module=beside.module,
        duration_us=max(0.0, few + share * (many - few)),
    )
