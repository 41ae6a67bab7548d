"""Find the step, layer, layer kind and unit of each kernel of a profile."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.profiling.kernel_roles import (
    Role,
    UnitKey,
    attention_places,
    layer_units,
    norm_start,
    role_of,
    superkernel_role,
    superkernel_unit,
)
from sktune.profiling.kernel_table import NO_STEP, start_gain
from sktune.profiling.repetition import STEP_GAP, Landmarks, name_kinds, split_layers, split_steps

NO_LAYER = -1
STEP_MARKERS = (Role.EMBEDDING, Role.SAMPLING)
"""Roles of kernels that run once per step."""


def add_structure(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one device's kernels inside steps, with the columns ``layer``, ``kind``, ``unit`` and ``idle_us``.

    ``layer`` counts from 0 in each step; outside of layers it is ``NO_LAYER``, and ``kind`` is empty. ``idle_us`` is
    the time just before the kernel in which all streams of the device were idle, zero for the first of a step.
    """
    frame = frame.reset_index(drop=True)
    # A kernel's role is from its type, or from its token if the type says nothing.
    columns = ["type", "token", "is_communication", "is_superkernel"]
    distinct = frame.groupby(columns, sort=False).ngroup().to_numpy()
    known_roles = []
    for kind, token, is_communication, is_superkernel in frame[columns].drop_duplicates().itertuples(index=False):
        role = superkernel_role(token) if is_superkernel else role_of(kind, is_communication)
        known_roles.append(role if role is not Role.OTHER else role_of(token))
    roles = np.array(known_roles, dtype=object)[distinct]
    main = on_main_stream(frame)
    if (frame["step"] == NO_STEP).all():
        frame["step"] = _found_steps(frame, roles, main)
    inside = (frame["step"] != NO_STEP).to_numpy()
    frame, roles, main = frame[inside].reset_index(drop=True), roles[inside], main[inside]
    codes = _codes(frame, roles)
    layer, idle = np.full(len(frame), NO_LAYER), np.zeros(len(frame))
    kinds, unit = np.full(len(frame), "", dtype=object), np.full(len(frame), str(UnitKey.OUTSIDE), dtype=object)
    known: dict[bytes, tuple[npt.NDArray[np.int64], npt.NDArray[np.object_], npt.NDArray[np.object_]]] = {}
    for rows in frame.groupby("step", sort=False).indices.values():
        start = frame["start_us"].to_numpy()[rows]
        idle[rows] = start_gain(start, start + frame["duration_us"].to_numpy()[rows])[0]
        on_main = rows[main[rows]]
        if not main[rows].any():
            continue
        key = codes[on_main].tobytes()
        if key not in known:
            tokens = frame["token"].to_numpy()[on_main].tolist()
            known[key] = _places(codes[on_main], tokens, list(roles[on_main]))
        # A kernel of another stream is in the layer and unit that the main stream is running when it starts.
        at = np.searchsorted(frame["start_us"].to_numpy()[on_main], start, side="right") - 1
        layer[rows], kinds[rows], unit[rows] = (column[np.maximum(at, 0)] for column in known[key])
    unit[roles == Role.COMMUNICATION] = str(UnitKey.COMMUNICATION)
    return frame.assign(layer=layer, kind=kinds, unit=unit, idle_us=idle)


def main_stream(frame: pd.DataFrame) -> str:
    """Return the stream that computes longest: layers are searched for only there, as the others run beside it."""
    computing = frame[~frame["is_communication"]]
    busy = (computing if len(computing) else frame).groupby("stream")["duration_us"].sum()
    return str(busy.idxmax())


def on_main_stream(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which kernels the main stream runs, and SuperKernels, which may have a stream of their own beside it."""
    rows, beside = frame["stream"] == main_stream(frame), ~frame["is_superkernel"]
    if beside.any() and not (rows & beside).any():
        rows = frame["stream"] == main_stream(frame[beside])
    return (rows | ~beside).to_numpy(bool)


def _codes(frame: pd.DataFrame, roles: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
    """Return one number per distinct kernel; RmsNorm and AddRmsNorm share one, as the first layer's norm differs."""
    fused_norm = (roles == Role.NORM) & ~frame["token"].str.contains("rsqrt").to_numpy()
    return pd.factorize(np.where(fused_norm, "norm", frame["token"]))[0].astype(np.int64)


def _found_steps(
    frame: pd.DataFrame, roles: npt.NDArray[np.object_], main: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    start = frame["start_us"].to_numpy()
    idle = start_gain(start, start + frame["duration_us"].to_numpy())[0]
    on_main = np.flatnonzero(main)
    markers = np.isin(roles[on_main], np.array(STEP_MARKERS, dtype=object))
    ranges = split_steps(_codes(frame, roles)[on_main], idle[on_main], markers)
    # What other streams ran before the first kernel belongs to the step, unless the step began long after it.
    is_late = idle[on_main[0]] > STEP_GAP * idle[on_main[1:]].sum() > 0
    if ranges == [(0, len(on_main))] and not is_late:
        return np.zeros(len(frame), dtype=np.int64)
    begins = start[on_main[[begin for begin, _ in ranges]]]
    step = np.searchsorted(begins, start, side="right") - 1
    end = ranges[-1][1]
    if end < len(on_main):
        step[start >= start[on_main[end]]] = NO_STEP
    return np.where(step < 0, NO_STEP, step)


def _places(
    codes: npt.NDArray[np.int64], tokens: list[str], roles: list[Role]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Return layer, kind and unit of each kernel on the main stream of a step."""
    count = len(codes)
    attention, rest, norm = (np.zeros(count, dtype=bool) for _ in range(3))
    attention[attention_places(roles)] = True
    rest[[place for place, role in enumerate(roles) if role in (Role.EXPERTS, Role.ACTIVATION)]] = True
    norm[[norm_start(tokens, roles, place) for place, role in enumerate(roles) if role is Role.NORM]] = True
    # A SuperKernel of attention may contain the norms around it, and then begins the layer.
    norm[[place for place, token in enumerate(tokens) if superkernel_unit(token) is UnitKey.ATTENTION]] = True
    layers = split_layers(codes, Landmarks(attention, rest, norm)) or [_only_layer(roles, norm)]

    def word(index: int) -> str:
        begin, end = layers[index]
        return "moe" if Role.EXPERTS in roles[begin:end] or any("moe" in t for t in tokens[begin:end]) else "dense"

    kinds = name_kinds([codes[begin:end] for begin, end in layers], word)
    layer, kind = np.full(count, NO_LAYER), np.full(count, "", dtype=object)
    outside = {Role.EMBEDDING: UnitKey.EMBEDDING, Role.NORM: UnitKey.NORM, Role.MATMUL: UnitKey.HEAD}
    unit = np.array([str(outside.get(role, UnitKey.OUTSIDE)) for role in roles], dtype=object)
    for index, (begin, end) in enumerate(layers):
        layer[begin:end], kind[begin:end] = index, kinds[index]
        unit[begin:end] = [str(key) for key in layer_units(tokens[begin:end], roles[begin:end])]
    return layer, kind, unit


def _only_layer(roles: list[Role], norm: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the range between embedding and final norm, used if nothing repeats."""
    begin = next((place for place, role in enumerate(roles) if role not in (Role.EMBEDDING, Role.VIEW)), 0)
    last = max(
        (p for p, role in enumerate(roles) if role in (Role.EXPERTS, Role.ACTIVATION, Role.ATTENTION)), default=-1
    )
    ends = [int(place) for place in np.flatnonzero(norm) if place > max(last, begin)] if last >= 0 else []
    return begin, ends[0] if ends else len(roles)
