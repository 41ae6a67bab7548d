"""Records what GE's own ``SuperKernelPass`` makes of random graphs, as facts: groups, streams, events, failures.

    python tests/golden/ge/record_grouping.py ROOT tests/golden/ge/grouping.json [SEED CASES]

ROOT is a folder with the pass, built as ``README.md`` says. Streams and events are given to the pass: GE's allocator of
streams is not built, so that they are a stand-in (an event for each edge between two streams). Nothing of the sources
is recorded.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SEED, CASES = 31, 420
FLAGS = (("s", "supported"), ("c", "collective"), ("m", "simt"))
STRICT = ("", "", "", "", "", "strict-scope-check=bypass", "strict-scope-check=abort", "strict-scope-check=never")
DESCRIBED = ' {} {{ name: "{}" dtype: DT_FLOAT shape {{ dim: 1 }} layout: "ND" }}'


def random_graph(rng: random.Random) -> list[dict]:
    """Return operators in topological order, as the pass gets them."""
    streams = rng.choice((1, 1, 2, 2, 3))
    supported, marked = rng.choice((0.6, 0.8, 0.95, 1.0)), rng.choice((0.7, 0.9, 1.0))
    labels = rng.choice((["s"], ["s"], ["s", "t"], ["a.b", "s", "t"]))
    strict = {label: rng.choice(STRICT) for label in labels}
    operators, current = [], rng.choice(labels)
    for place in range(rng.randint(2, 14)):
        if rng.random() < 0.15:
            current = rng.choice(labels)
        label = current if rng.random() < marked else ""
        kind = rng.choices(("Op", "MatMul", "Reshape", "HcomAllReduce"), (6, 3, 1, 1))[0]
        stream = rng.choice((0, -1)) if kind == "Reshape" else rng.randrange(streams)
        options = strict[label] if label and rng.random() < 0.9 else ""
        operators.append({
            "name": f"n{place}", "type": kind, "label": label, "options": options, "stream": stream,
            "supported": kind != "Reshape" and kind != "HcomAllReduce" and rng.random() < supported,
            "collective": kind == "HcomAllReduce" and rng.random() < 0.6, "simt": rng.random() < 0.03,
            "inputs": sorted(rng.sample(range(place), min(place, rng.randint(0, 2)))),
        })  # fmt: skip
    return operators


def nodes_of(operators: list[dict]) -> list[dict]:
    """Return the graph's nodes: the data before, and around each edge between two streams a Send and a Recv."""
    nodes = [{"name": "data", "type": "Data", "stream": 0}]
    event = 0
    for each in operators:
        controls = []
        for place in each["inputs"]:
            source = operators[place]
            if source["stream"] != each["stream"] and min(source["stream"], each["stream"]) >= 0:
                event += 1
                at = next(index for index, node in enumerate(nodes) if node["name"] == source["name"])
                nodes.insert(at + 1, {"name": f"Send_{event}", "type": "Send", "stream": source["stream"],
                                      "event": event, "from": source["name"]})  # fmt: skip
                nodes.append({"name": f"Recv_{event}", "type": "Recv", "stream": each["stream"], "event": event})
                controls.append(f"Recv_{event}")
        nodes.append(each | {"controls": controls, "waits": [
            operators[place]["name"] for place in each["inputs"]
            if operators[place]["stream"] != each["stream"] and min(operators[place]["stream"], each["stream"]) >= 0
        ]})  # fmt: skip
    nodes.append({"name": "out", "type": "NetOutput", "stream": 0, "from_data": operators[-1]["name"]})
    return nodes


def proto(nodes: list[dict], operators: list[dict]) -> str:
    """Return the graph as protobuf text."""
    lines = ['name: "g"']
    for node in nodes:
        text = f'op {{ name: "{node["name"]}" type: "{node["type"]}" stream_id: {node["stream"]}'
        if node["type"] in ("Send", "Recv"):
            text += f' attr {{ key: "event_id" value {{ i: {node["event"]} }} }}'
            text += f' input: "{node["from"]}:-1"' if node["type"] == "Send" else ""
        else:
            inputs = [operators[place]["name"] for place in node.get("inputs", ())]
            inputs = inputs or (
                [node["from_data"]] if "from_data" in node else [] if node["type"] == "Data" else ["data"]
            )
            text += "".join(f' input: "{name}:0"' for name in inputs)
            text += "".join(f' input: "{name}:-1"' for name in node.get("controls", ()))
            text += DESCRIBED.format("input_desc", "x") * len(inputs) + DESCRIBED.format("output_desc", "y")
            for key, value in (
                ("_super_kernel_scope", node.get("label")),
                ("_super_kernel_options", node.get("options")),
            ):
                text += f' attr {{ key: "{key}" value {{ s: "{value}" }} }}' if value else ""
            text += ' attr { key: "supportSuperKernel" value { i: 1 } }' if node.get("supported") else ""
            text += ' attr { key: "local_memory_size" value { i: 64 } }' if node.get("simt") else ""
            text += ' attr { key: "_hccl" value { b: true } }' if node.get("collective") else ""
        lines.append(text + " }")
    return "\n".join(lines) + "\n"


def facts(root: Path, nodes: list[dict], operators: list[dict]) -> dict:
    """Return what the pass forms."""
    places = {node["name"]: index for index, node in enumerate(nodes)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.txt"
        path.write_text(proto(nodes, operators))
        done = subprocess.run(
            [str(root / "pass" / "out" / "skrun"), str(path)], capture_output=True, text=True, check=False
        )
    if "{" not in done.stdout:
        raise RuntimeError(done.stderr[-500:])
    result = json.loads(done.stdout[done.stdout.index("{") :])
    if result["status"] != "ok":
        return {"failed": True}
    groups = []
    for each in result["superkernels"]:
        inside = [node for node in each["ops"] if node["name"] in places]
        sends = {event: places[node["name"]] for node in inside for event in node.get("send", ())}
        receives = {event: places[node["name"]] for node in inside for event in node.get("recv", ())}
        inner = sends.keys() & receives.keys()
        groups.append({
            "name": each["name"], "stream": each["stream"], "nodes": [places[node["name"]] for node in inside],
            "links": sorted([sends[event], receives[event]] for event in inner),
            "notifies": counted(place for event, place in sends.items() if event not in inner),
            "waits": counted(place for event, place in receives.items() if event not in inner),
        })  # fmt: skip
    return {"groups": sorted(groups, key=lambda each: each["nodes"])}


def counted(places: "object") -> list[list[int]]:
    """Return how often each place occurs."""
    counts: dict[int, int] = {}
    for place in places:  # type: ignore[attr-defined]
        counts[place] = counts.get(place, 0) + 1
    return sorted([place, count] for place, count in counts.items())


def recorded(root: Path, operators: list[dict]) -> str:
    """Return a graph's nodes and what the pass forms of them, as a line of JSON."""
    nodes = nodes_of(operators)
    places = {node["name"]: index for index, node in enumerate(nodes)}
    listed = [
        [node["name"], node["type"], node.get("label", ""), node.get("options", ""), node["stream"],
         "".join(letter for letter, key in FLAGS if node.get(key)), [places[name] for name in node.get("waits", ())]]
        for node in nodes
    ]  # fmt: skip
    return json.dumps({"nodes": listed, "facts": facts(root, nodes, operators)}, separators=(",", ":"))


def main() -> None:
    """Write the facts of all cases."""
    seed, cases = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (SEED, CASES)
    root, rng, rows = Path(sys.argv[1]).resolve(), random.Random(seed), []
    for _ in range(cases):
        operators = random_graph(rng)
        rows.append(recorded(root, operators))
    source = "hicann/ge ffdcbc9, hicann/metadef 786891c; streams and events are a stand-in; no libascendsk.so"
    text = f'{{"source": {json.dumps(source)}, "cases": [\n' + ",\n".join(rows) + "\n]}\n"
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
