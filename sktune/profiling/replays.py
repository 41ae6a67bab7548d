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
        table: columns ``device``, ``model``, ``task``, ``stream`` (text, empty if unknown) and ``start_ns``.

    Returns:
        None if a device has no graph, several, or one whose executions differ.
    """
    steps = np.full(len(table), NO_STEP, dtype=np.int64)
    graph = table[(table["model"] != "") & (table["model"] != _NO_GRAPH) & (table["task"] != "")]
    if set(graph["device"]) != set(table["device"]):
        return None
    for _, rows in graph.sort_values("start_ns", kind="stable").groupby("device"):
        if rows["model"].nunique() != 1:
            return None
        task = pd.factorize(rows["stream"] + "/" + rows["task"])[0]
        number = np.cumsum(task == task[0]) - 1  # the first task begins each execution
        whole = set(task[number == 0])
        for replay in range(number[-1] + 1):
            tasks = task[number == replay].tolist()
            if len(set(tasks)) != len(tasks) or not set(tasks) <= whole:
                return None
            if set(tasks) != whole:
                if replay != number[-1]:
                    return None
                number[number == replay] = NO_STEP  # the recording ended in it
        steps[table.index.get_indexer(rows.index)] = number
    return steps
