"""Steps of a profile without marks, from the executions of its graph: each task has the same id in all of them."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.profiling.kernel_table import NO_STEP

_NO_GRAPH = str(2**32 - 1)
"""The profiler's model id of kernels that the host launched one by one."""


def replays(table: pd.DataFrame) -> npt.NDArray[np.int64] | None:
    """Return the step of each row: executions of the device's only graph count from 0, other kernels are outside.

    Args:
        table: columns ``device``, ``model``, ``task``, ``stream`` (text, empty if unknown), ``start_ns`` and
            ``duration_us``, with an index from 0.

    Returns:
        None if a device has no graph, several, or one whose executions differ.
    """
    steps = np.full(len(table), NO_STEP, dtype=np.int64)
    table = table.sort_values("start_ns", kind="stable")
    graph = table[(table["model"] != "") & (table["model"] != _NO_GRAPH) & (table["task"] != "")]
    if set(graph["device"]) != set(table["device"]):
        return None
    for device, rows in graph.groupby("device"):
        if rows["model"].nunique() != 1:
            return None
        task = pd.factorize(rows["stream"] + "/" + rows["task"])[0]
        every = table[table["device"] == device]
        end_ns = (every["start_ns"] + (every["duration_us"] * 1e3).astype(np.int64)).cummax().shift()
        idle_ns = (every["start_ns"] - end_ns).loc[rows.index]
        number = np.cumsum(task == _first_task(task, rows, idle_ns)) - 1
        last, whole = number[-1], task.max() + 1
        for replay in range(-1, last + 1):
            tasks = task[number == replay]
            if len(set(tasks)) != len(tasks) or (len(tasks) != whole and replay not in (-1, last)):
                return None
            if len(tasks) != whole:
                number[number == replay] = NO_STEP  # the recording began or ended in it
        steps[rows.index] = number
    return steps


def _first_task(task: npt.NDArray[np.int64], rows: pd.DataFrame, idle_ns: "pd.Series[float]") -> int:
    """Return the task that begins an execution, as a recording may begin inside one.

    It is the first of its stream, after which ids ascend, if they do; of several, that after the longest pause.
    """
    repeats = np.bincount(task) > 1
    if not repeats.any():
        return int(task[0])
    firsts: set[int] = set()
    ids = pd.to_numeric(rows["task"], errors="coerce").to_numpy()
    for places in rows.reset_index().groupby("stream").indices.values():
        wraps = set(task[places[1:][np.diff(ids[places]) < 0]])
        firsts |= wraps if len(wraps) == 1 else set(task[places])
    pauses = idle_ns.groupby(task).median()
    return max(sorted(kind for kind in firsts if repeats[kind]), key=lambda kind: float(pauses[kind]))
