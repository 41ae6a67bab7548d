"""Roles of kernels by their names, and the units of a decoder layer to which they belong.

A profile does not record which module launched a kernel. The units follow from the order of the kernels and their
roles: attention is between a layer's first norm and the next, the MLP or the experts follow. A SuperKernel's unit is in
its name.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

from sktune.ascend.kernel_name import parse_superkernel_name


class Role(StrEnum):
    """What a kernel does, as far as it indicates a position in a layer."""

    COMMUNICATION = "communication"
    EXPERTS = "experts"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    NORM = "norm"
    ACTIVATION = "activation"
    MATMUL = "matmul"
    EMBEDDING = "embedding"
    SAMPLING = "sampling"
    VIEW = "view"
    OTHER = "other"


class UnitKey(StrEnum):
    """Units inside a layer, named as in search spaces, and values for kernels that are in none of them."""

    INPUT_NORM = "input_layernorm"
    ATTENTION = "self_attn"
    POST_NORM = "post_attention_layernorm"
    MLP = "mlp"
    LAYER = "layer"
    """Kernels of a layer whose units cannot be distinguished."""
    COMMUNICATION = "communication"
    EMBEDDING = "embed_tokens"
    NORM = "norm"
    HEAD = "lm_head"
    OUTSIDE = "step"


# The first match decides: MoeGatingTopKSoftmax is not a softmax, KvRmsNormRopeCache is not a norm.
_PATTERNS = {
    Role.VIEW: "^aten::(empty|view|_?reshape|as_strided|transpose|t_?$|expand|slice|select|unsqueeze|squeeze|permute"
    "|detach|alias|resize_|resolve_|lift|split|chunk|narrow|is_|item|_local_scalar|result_type|unflatten|flatten|unbind"
    "|set_data|_unsafe_view)",
    Role.EXPERTS: r"moe|expert|grouped_?(mat_?mul|mm|gemm)|gmm\d?|top_?k|permute|histc|bincount",
    Role.ATTENTION: "attention|attn|flash|fmha|mla(?![a-z])|mlaprolog|mla_|rope|rotary|lightning_?indexer"
    "|reshape_?and_?cache|kv_?cache|decode_?with_?kv|scatter_?(nd_?)?update|mamba"
    "|delta_?rule|selective_scan",
    Role.NORM: "norm(?!al)|rsqrt",
    Role.ACTIVATION: "swi_?glu|silu|swish|ge_?glu|gelu|act_and_mul|relu",
    Role.SAMPLING: "arg_?max|sampl|multinomial",
    Role.SOFTMAX: "soft_?max",
    Role.MATMUL: "mat_?mul|gemm|gemv|(^|[^a-z])(mm|bmm|addmm|linear)($|[^a-z])|cutlass|cublas|nvjet|xmma|conv(?!ert)",
    Role.EMBEDDING: "embedding|gather_?v2|index_?select",
}
_RULES = tuple((role, re.compile(pattern, re.IGNORECASE)) for role, pattern in _PATTERNS.items())


def role_of(name: str, is_communication: bool = False) -> Role:
    """Return the role of a kernel by its type or name."""
    if is_communication:
        return Role.COMMUNICATION
    return next((role for role, pattern in _RULES if pattern.search(name)), Role.OTHER)


_SCOPES = (
    (UnitKey.INPUT_NORM, re.compile(r"input_layernorm", re.IGNORECASE)),
    (UnitKey.ATTENTION, re.compile(r"attn|(?<!post_)attention", re.IGNORECASE)),
    (UnitKey.POST_NORM, re.compile(r"post_attention_layernorm", re.IGNORECASE)),
    (UnitKey.MLP, re.compile(r"mlp|moe|ffn|expert", re.IGNORECASE)),
)
_UNIT_OF_ROLE = {Role.ATTENTION: UnitKey.ATTENTION, Role.EXPERTS: UnitKey.MLP, Role.ACTIVATION: UnitKey.MLP}


def superkernel_unit(name: str) -> UnitKey | None:
    """Return the unit that a SuperKernel covers, from its label, else from its first and last operators.

    ``LAYER`` if it covers several units; None if the unit is unknown or ``name`` is not that of a SuperKernel.
    """
    parsed = parse_superkernel_name(name)
    if parsed is None:
        return None
    named = _named(parsed.scope) or _named(parsed.first) | _named(parsed.last)
    if UnitKey.MLP in named:
        return UnitKey.LAYER if named & {UnitKey.INPUT_NORM, UnitKey.ATTENTION} else UnitKey.MLP
    return UnitKey.ATTENTION if len(named) > 1 else next(iter(named), None)


def superkernel_role(name: str) -> Role:
    """Return the role of a SuperKernel among the kernels of its layer."""
    unit, role = superkernel_unit(name), role_of(name)
    if unit is UnitKey.ATTENTION:
        return Role.ATTENTION
    if unit is UnitKey.MLP:
        return role if role is Role.EXPERTS else Role.ACTIVATION
    return Role.NORM if unit in (UnitKey.INPUT_NORM, UnitKey.POST_NORM) else role


def _named(text: str) -> set[UnitKey]:
    role_unit = _UNIT_OF_ROLE.get(role_of(text))
    return {unit for unit, word in _SCOPES if word.search(text)} or ({role_unit} if role_unit else set())


# The operators of an unfused RMSNorm, before and after its reciprocal root.
NORM_PIECE = re.compile(r"(^|[:_])(pow|square|mean|sum|div|add|mul|to|copy|_to_copy|cast|rsqrt)_?$", re.IGNORECASE)
NORM_START = re.compile(r"(^|[:_])(pow|square)_?$", re.IGNORECASE)


def norm_start(tokens: Sequence[str], roles: Sequence[Role], norm: int) -> int:
    """Return the index of the first kernel of the norm at ``norm``: if unfused, its square."""
    if "rsqrt" not in tokens[norm].lower():
        return norm
    place = norm
    while place > 0 and (NORM_PIECE.search(tokens[place - 1]) or roles[place - 1] is Role.VIEW):
        place -= 1
        if NORM_START.search(tokens[place]):
            return place
    return norm


def layer_units(tokens: Sequence[str], roles: Sequence[Role]) -> list[UnitKey]:
    """Return the unit of each kernel of one layer, in order."""
    units = _parts(tokens, roles)
    return [
        UnitKey.COMMUNICATION if role is Role.COMMUNICATION else superkernel_unit(token) or unit
        for token, role, unit in zip(tokens, roles, units, strict=True)
    ]


def _parts(tokens: Sequence[str], roles: Sequence[Role]) -> list[UnitKey]:
    attention = attention_places(roles)
    if not attention:  # units are from the scopes in names
        return [next((unit for unit, word in _SCOPES if word.search(each)), UnitKey.LAYER) for each in tokens]
    rest = [
        place for place, role in enumerate(roles) if role in (Role.EXPERTS, Role.ACTIVATION) and place > attention[0]
    ]
    core = max((place for place in attention if not rest or place < rest[0]), default=attention[-1])
    norms = [place for place, role in enumerate(roles) if role is Role.NORM]
    first = next((place for place in norms if place < attention[0]), None)
    units = [UnitKey.ATTENTION] * len(roles)
    if first is not None and not any(roles[place] is Role.MATMUL for place in range(first)):
        end = _norm_end(tokens, roles, first)
        units[:end] = [UnitKey.INPUT_NORM] * end
    post = next((place for place in norms if place > core and (not rest or place < rest[0])), None)
    if post is not None:
        begin, end = norm_start(tokens, roles, post), _norm_end(tokens, roles, post)
        units[begin:end] = [UnitKey.POST_NORM] * (end - begin)
    elif superkernel_unit(tokens[core]):
        end = core + 1
    else:  # without a norm between them, attention ends with its output projection
        limit = rest[0] if rest and rest[0] > core else len(roles)
        end = next((place + 1 for place in range(core + 1, limit) if roles[place] is Role.MATMUL), limit)
    units[end:] = [UnitKey.MLP] * (len(roles) - end)
    return units


def attention_places(roles: Sequence[Role]) -> list[int]:
    """Return the indices of attention kernels; a plain softmax counts only if there are no others."""
    for wanted in (Role.ATTENTION, Role.SOFTMAX):
        if places := [place for place, role in enumerate(roles) if role is wanted]:
            return places
    return []


def _norm_end(tokens: Sequence[str], roles: Sequence[Role], norm: int) -> int:
    """Return the index after the norm's kernels: if unfused, it ends with products and casts."""
    end = norm + 1
    if "rsqrt" in tokens[norm].lower():
        while end < len(tokens) and (NORM_PIECE.search(tokens[end]) or roles[end] is Role.VIEW):
            end += 1
    return end
