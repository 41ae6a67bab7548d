"""Records what GE's own ``SuperKernelPass`` makes of eight models on several streams and with collectives, as facts.

    python -m tests.golden.ge.record_streams ROOT tests/golden/ge/streams.json [SEED CASES]

ROOT is a folder with the pass, built as ``README.md`` says. The operators are TorchAir's
(``benchmarks/data/operators.json``), of the step's beginning, one layer of each kind, and its end. What comes between
TorchAir and the pass is a stand-in: a part of some units runs on another stream, as with ``npu_stream_switch``, and
joins at the unit's end; collectives follow attention and feed-forward units; types that cannot be fused are drawn;
plans are random runs of units.
"""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.golden.ge.record_grouping import recorded

SEED, CASES = 37, 48
OPERATORS = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "operators.json"
SCOPES = ("", "", "", "strict-scope-check=bypass", "strict-scope-check=abort")


def model_graph(parts: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Return a model's operators under a random plan, in topological order, as the pass gets them."""
    units = [(place, key) for place, part in enumerate(parts) for key, _, _ in part["operators"] if key]
    units = list(dict.fromkeys(units))
    label_of = labels(units, rng)
    types = sorted({kind for part in parts for _, kind, _ in part["operators"]})
    unsupported = set(rng.sample(types, rng.choice((0, 1, 2, 4))))
    aside = {unit for unit in units if rng.random() < 0.3}
    operators: list[dict[str, Any]] = []
    last: dict[int, int] = {}

    def add(name: str, kind: str, label: str, stream: int, inputs: list[int], *, collective: bool = False) -> None:
        options = strict if label else ""
        operators.append({
            "name": name, "type": kind, "label": label, "options": options, "stream": stream,
            "supported": not collective and kind not in unsupported, "simt": False,
            "collective": collective and rng.random() < 0.7, "inputs": sorted(set(inputs)),
        })  # fmt: skip
        last[stream] = len(operators) - 1

    strict = rng.choice(SCOPES)
    for place, part in enumerate(parts):
        runs = [(place, key) for key, _, _ in part["operators"]]
        for number, (key, kind, _) in enumerate(part["operators"]):
            unit = (place, key)
            inside = [index for index, run in enumerate(runs) if run == unit]
            label = label_of.get(unit, "") if key else between(label_of, runs, number)
            # The middle third of such a unit forks off; what follows takes both streams' outputs.
            third = len(inside) // 3
            forked = unit in aside and third and inside[third] <= number < inside[2 * third]
            stream = int(bool(forked))
            inputs = [last[stream]] if stream in last else []
            if forked and number == inside[third] and 0 in last:
                inputs.append(last[0])
            if unit in aside and third and number == inside[2 * third] and 1 in last:
                inputs.append(last[1])
            add(f"{place}.{key}.{number}", kind, label, stream, inputs)
            if key.startswith(("self_attn", "mlp")) and number == inside[-1] and rng.random() < 0.5:
                add(f"{place}.{key}.{number}.reduce", "HcomAllReduce", label, 0, [last[0]], collective=True)
    return operators


def labels(units: list[tuple[int, str]], rng: random.Random) -> dict[tuple[int, str], str]:
    """Return the scope of each unit, of a random plan."""
    found: dict[tuple[int, str], str] = {}
    current = ""
    for number, unit in enumerate(units):
        choice = rng.choice(("out", "new", "join", "join"))
        if choice == "out":
            current = ""
        elif choice == "new" or not current:
            current = f"scope.{number}"
        if current:
            found[unit] = current
    return found


def between(label_of: dict[tuple[int, str], str], runs: list[tuple[int, str]], number: int) -> str:
    """Return the label of an operator between two units: theirs, if they share one."""
    keyed = [(index, label_of.get(run, "")) for index, run in enumerate(runs) if run[1]]
    for (left, before), (right, after) in pairwise(keyed):
        if left < number < right:
            return before if before == after else ""
    return ""


def main() -> None:
    """Write the facts of all cases."""
    seed, cases = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (SEED, CASES)
    root, rng, rows = Path(sys.argv[1]).resolve(), random.Random(seed), []
    models = json.loads(OPERATORS.read_text())["models"]
    for number in range(cases):
        operators = model_graph(models[number % len(models)]["parts"], rng)
        rows.append(recorded(root, operators))
    source = "hicann/ge ffdcbc9, TorchAir of torch_npu 2.13.0; streams, events and collectives are a stand-in"
    text = f'{{"source": {json.dumps(source)}, "cases": [\n' + ",\n".join(rows) + "\n]}\n"
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
