"""Records what GE's own ``SuperKernelPass`` makes of TorchAir's dumps of eight models under plans, as facts.

    .venv-npu/bin/python -m tests.golden.ge.record_models ROOT tests/golden/ge/models.json [SEED PLANS]

ROOT is a folder with the pass, built as ``README.md`` says. What happens between TorchAir and the pass is a stand-in:
every device task is on one stream, unsupported types are drawn, and views are deleted or left on the stream.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from sktune.ascend.ge_graph import read_ge_graph
from sktune.backends.npu.backend import DUMPS
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.targets.presets import load_preset
from tests.torchair.conformance_models import CONFIGURATIONS, MODELS, spec_of
from tests.torchair.test_scopes import convert

SEED, PLANS = 32, 10
STRICT = ("", "", "", "", "bypass", "abort")
LOST = re.compile(r'  attr \{\s*key: "_super_kernel_(?:scope|options)"\s*value \{\s*s: "[^"]*"\s*\}\s*\}\n')
SCOPE = re.compile(r'key: "_super_kernel_scope"\s*value \{\s*s: "([^"]*)"')


def random_plans(conversion: Any, untied: Any, rng: random.Random, count: int) -> list[Plan]:
    """Return starting points, and random points of the tied and the untied space."""
    plans = [conversion.plan(point.values) for point in conversion.starting_points]
    for number in range(count):
        space = untied if number % 2 else conversion
        plans.append(space.plan({name: rng.choice(list(values)) for name, values in space.choices.items()}))
    return [plan for plan in plans if plan.scopes]


def dumped(backend: Any, plan: Plan) -> str:
    """Return TorchAir's dump of a plan."""
    backend.compile(plan)
    return max(DUMPS.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns).read_text()


def prepared(text: str, tasks: set[str], unsupported: set[str], views: str, strict: str) -> tuple[str, list[list[Any]]]:
    """Return the dump as the pass gets it, and its nodes as name, type, label, options, stream and flags."""
    head, *operators = re.split(r"(?m)^op \{\n", text)
    out, nodes = [head], []
    for body in operators:
        name = re.search(r'^  name: "([^"]*)"', body)[1]  # type: ignore[index]
        kind = re.search(r'(?m)^  type: "([^"]*)"', body)[1]  # type: ignore[index]
        scope = SCOPE.search(body)
        is_task = name in tasks
        stream = 0 if is_task or views == "left" or kind in ("Data", "Const", "NetOutput") else -1
        supported = is_task and kind not in unsupported
        options = f"strict-scope-check={strict}" if strict and scope else ""
        added = f"  stream_id: {stream}\n"
        if supported:
            added += '  attr { key: "supportSuperKernel" value { i: 1 } }\n'
        if scope:
            added += f'  attr {{ key: "_super_kernel_scope" value {{ s: "{scope[1]}" }} }}\n'
        if options:
            added += f'  attr {{ key: "_super_kernel_options" value {{ s: "{options}" }} }}\n'
        body = re.sub(r'(?m)^  type: "[^"]*"\n', lambda line: line[0] + added, LOST.sub("", body), count=1)  # noqa: B023
        out.append("op {\n" + body)
        nodes.append([name, kind, scope[1] if scope else "", options, stream, "s" if supported else ""])
    return "".join(out), nodes


def formed(root: Path, text: str, nodes: list[list[Any]]) -> dict[str, Any]:
    """Return the SuperKernels that the pass forms, as ranges of nodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.txt"
        path.write_text(text)
        command = [str(root / "pass" / "out" / "skrun"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout[done.stdout.index("{") :])
    if result["status"] != "ok":
        return {"failed": True}
    place = {node[0]: index for index, node in enumerate(nodes)}
    groups = [[place[each["name"]] for each in kernel["ops"]] for kernel in result["superkernels"]]
    return {"groups": sorted(ranges(each) for each in groups)}


def ranges(places: list[int]) -> list[list[int]]:
    """Return runs of consecutive numbers as first and last."""
    runs = groupby(enumerate(places), key=lambda pair: pair[1] - pair[0])
    found = [[place for _, place in run] for _, run in runs]
    return [[run[0], run[-1]] for run in found]


def main() -> None:
    """Write the facts of all models and plans."""
    root, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    seed, count = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (SEED, PLANS)
    rng, models = random.Random(seed), []
    for model in (*MODELS, "deepseek_v3"):
        work = Path(tempfile.mkdtemp())
        os.chdir(work)
        spec, wanted = spec_of(model, work)
        options = load_preset("deepseek-v3").space.options if model in CONFIGURATIONS else wanted.options
        conversion = convert(spec, SpaceSpec(options=options))
        untied = convert(spec, SpaceSpec(per_layer=True, options=options)).space
        cases, kinds = [], []
        for plan in random_plans(conversion.space, untied, rng, count):
            text = dumped(conversion.backend, plan)
            graph = read_ge_graph(text)
            types = sorted({task.type for task in graph.device_tasks})
            unsupported = set(rng.sample(types, rng.choice((0, 1, 2, 4))))
            views, strict = rng.choice(("removed", "removed", "left")), rng.choice(STRICT)
            ready, nodes = prepared(text, {task.name for task in graph.device_tasks}, unsupported, views, strict)
            kinds = [node[1] for node in nodes]
            labels = [[key, len(list(run))] for key, run in groupby(node[2] for node in nodes)]
            streams = [[key, len(list(run))] for key, run in groupby(node[4] for node in nodes)]
            tasks = ranges(
                [index for index, node in enumerate(nodes) if node[0] in {t.name for t in graph.device_tasks}]
            )
            cases.append({"labels": labels, "streams": streams, "tasks": tasks, "unsupported": sorted(unsupported),
                          "strict": strict, "facts": formed(root, ready, nodes)})  # fmt: skip
        models.append({"model": model, "types": kinds, "cases": cases})
        print(model, len(kinds), len(cases), flush=True)
    source = "hicann/ge ffdcbc9; TorchAir of torch_npu 2.13.0; one stream, unsupported types drawn"
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in models)
    target.write_text(f'{{"source": {json.dumps(source)}, "models": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
