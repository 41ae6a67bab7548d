"""Records what graph-autofusion makes of random captured graphs, as facts: SuperKernels, groups, reasons, failures.

    python -m tests.golden.npugraph_ex.record_splits AOTRUN tests/golden/npugraph_ex/splits.json [SEED CASES]

AOTRUN is the driver, built as ``README.md`` says. Nothing of the sources is recorded.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SEED, CASES = 37, 420
SOURCE = "mirror-cann/graph-autofusion 8d0b4fbc, super_kernel/src/aot; runtime and kernels are a stand-in"
FLAGS = {"a": "sync_all", "n": "not_built", "m": "no_map", "d": "dynamic"}
OPTIONS = {
    "auto_op_parallel": (1,), "task_breaker_bypass": (1,), "value_breaker_bypass": (1, 2, 3),
    "debug_per_op_max_core_num": (1,),
}  # fmt: skip
FIRST_ADDRESS = 1000


class RandomGraph:
    """A random captured graph: its tasks, as lists of kind, stream and details, in the order of capture."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.streams = rng.choice((1, 1, 2, 2, 2, 3, 4))
        self.names = rng.choice((["s"], ["s", "t"], ["s", "t", "u.1"]))
        self.options = {name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < 0.1}
        self.cores = rng.choice(([24, 48], [24, 48], [20, 40], [8, 8]))
        self.tasks: list[list[Any]] = []
        self.open: list[str | None] = []
        self.resets: list[list[Any]] = []
        self.events = 0
        self.fusable, self.marked = rng.choice((0.7, 0.9, 1.0)), rng.choice((0.0, 0.1, 0.2))
        self.valued, self.other = rng.choice((0.0, 0.0, 0.1)), rng.choice((0.0, 0.0, 0.1))
        self.synced, self.reset_style = rng.choice((0.0, 0.0, 0.2)), rng.choice(("end", "end", "end", "after", "none"))
        self.switched = 0.3
        if rng.random() < 0.25:
            self.streams, self.marked, self.switched = rng.choice((3, 4, 5)), rng.choice((0.0, 0.05)), 0.5
            self.fusable, self.reset_style = rng.choice((0.85, 0.95, 1.0)), "end"
        self.fill(rng.randint(4, 24))

    def fill(self, count: int) -> None:
        """Capture tasks, close what is open, and reset the events."""
        stream = 0
        if self.marked and self.rng.random() < 0.6:
            self.begin(0)
        for _ in range(count):
            if self.streams > 1 and self.rng.random() < self.switched:
                stream = self.switch(stream)
            self.capture(stream)
        while self.open and self.rng.random() < 0.97:
            self.end(0 if self.rng.random() < 0.7 else stream)
        self.tasks += self.resets
        for each in range(self.streams):
            if not any(task[1] == each for task in self.tasks):
                self.tasks.append(["kernel", each, "vector", 1, ""])

    def switch(self, stream: int) -> int:
        """Go to another stream, mostly with an event that orders the two, and sometimes others."""
        target = self.rng.choice([each for each in range(self.streams) if each != stream])
        if self.rng.random() < 0.85:
            external = "x" if self.rng.random() < 0.04 else ""
            if self.rng.random() < 0.97:
                self.tasks.append(["record", stream, self.events, external])
            waits = [target] * (1 + (self.rng.random() < 0.1))
            waits += [self.rng.randrange(self.streams)] * (self.rng.random() < 0.15)
            if self.rng.random() < 0.3:
                self.kernel(stream)
            for each in waits * (self.rng.random() < 0.95):
                place = len(self.tasks) if self.rng.random() < 0.98 else self.rng.randrange(len(self.tasks) + 1)
                outside = "x" if external or self.rng.random() < 0.02 else ""
                self.tasks.insert(place, ["wait", each, self.events, outside])
            if self.reset_style != "none" and self.rng.random() < 0.95:
                (self.resets if self.reset_style == "end" else self.tasks).append(["reset", target, self.events, ""])
            self.events += 1
        return target

    def capture(self, stream: int) -> None:
        """Add one task, or a marker."""
        drawn = self.rng.random()
        if drawn < self.marked:
            if self.open and self.rng.random() < 0.5:
                self.end(stream)
            else:
                self.begin(stream)
        elif drawn < self.marked + self.valued:
            address = FIRST_ADDRESS + self.rng.randrange(3)
            value = self.rng.choice((0, 1, 1, 2))
            if self.rng.random() < 0.5:
                self.tasks.append(["write", stream, address, value])
            else:
                self.tasks.append(["wait_value", stream, address, 1, self.rng.choice((1, 1, 1, 0, 2, 3))])
        elif drawn < self.marked + self.valued + self.other:
            self.tasks.append(["other", stream])
        else:
            self.kernel(stream)

    def kernel(self, stream: int) -> None:
        """Add a kernel, most of which can be fused."""
        flags = "" if self.rng.random() < self.fusable else self.rng.choice("nmd")
        flags += "a" if self.rng.random() < self.synced else ""
        core = self.rng.choices(("cube", "vector", "mix1", "mix2", "other"), (4, 6, 2, 3, 0.2))[0]
        most = self.cores[core == "vector"]
        blocks = self.rng.choice((1, 2, most // 2, most, most))
        if core == "mix2":
            blocks = min(blocks, self.cores[1] // 2)
        self.tasks.append(["kernel", stream, core, blocks + (self.rng.random() < 0.01) * 99, flags])

    def begin(self, stream: int) -> None:
        """Open a scope, or a part that is not to be fused."""
        name = None if self.rng.random() < 0.12 else self.rng.choice(self.names)
        self.open.append(name)
        self.tasks.append(["begin", stream, name])

    def end(self, stream: int) -> None:
        """Close a scope, mostly the last one."""
        at = -1 if self.rng.random() < 0.8 else self.rng.randrange(len(self.open))
        name = self.open.pop(at)
        self.tasks.append(["end", stream, self.rng.choice(self.names) if self.rng.random() < 0.02 else name])


def spelled(task: list[Any]) -> dict[str, Any]:
    """Return a task as the driver reads it."""
    kind, stream, *details = task
    known = {"kind": kind, "stream": stream}
    if kind == "kernel":
        core, blocks, flags = details
        return known | {"core": core, "blocks": blocks} | {FLAGS[flag]: True for flag in flags}
    if kind in ("begin", "end"):
        return known | {"name": details[0]}
    if kind in ("record", "wait", "reset"):
        return known | {"event": details[0] + 1, "external": details[1] == "x"}
    return known | dict(zip(("event", "value", "flag"), details, strict=False))


def answers(aotrun: str, questions: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Return what the driver answers to each question."""
    text = "".join(json.dumps(each) + "\n" for each in questions)
    done = subprocess.run([aotrun], input=text, capture_output=True, text=True, check=True)
    yield from map(json.loads, done.stdout.splitlines())


def recorded(aotrun: str, seed: int, cases: int) -> list[dict[str, Any]]:
    """Return random graphs with what becomes of them."""
    rng = random.Random(seed)
    graphs = [RandomGraph(rng) for _ in range(cases)]
    rows: list[dict[str, Any]] = [
        {"streams": each.streams, "cores": each.cores, "options": each.options, "tasks": each.tasks} for each in graphs
    ]
    found = answers(aotrun, (row | {"tasks": list(map(spelled, row["tasks"]))} for row in rows))
    return [row | {"facts": listed(facts)} for row, facts in zip(rows, found, strict=True)]


def listed(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without the names of their parts, to save space."""
    return {name: [list(each.values()) if isinstance(each, dict) else each for each in part]
            if isinstance(part, list) else part for name, part in facts.items()}  # fmt: skip


def main() -> None:
    """Write the facts of all cases."""
    seed, cases = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (SEED, CASES)
    rows = [json.dumps(row, separators=(",", ":")) for row in recorded(sys.argv[1], seed, cases)]
    text = f'{{"source": {json.dumps(SOURCE)}, "seed": {seed}, "cases": [\n' + ",\n".join(rows) + "\n]}\n"
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
