"""``python -m benchmarks.field --repository PATH [FOLDER ...]``: the table of ``benchmarks/results/field-apply.md``.

``--random N --seed S`` adds N plans for each folder, with scopes over random units of random layers; each answer must
come within ``ANSWER_S``.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import SktuneError
from sktune.core.plan import Plan, Scope
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source.codemod import Rewritten, rewrite
from sktune.source.values import Known, Reading
from sktune.source.yaml_flag import turn_on
from sktune.targets.recipe import FLAG

FACTS = yaml.safe_load((Path(__file__).parent / "facts.yaml").read_text(encoding="utf-8"))
LAYERS = 4
ANSWER_S = 10.0


@dataclass(frozen=True)
class Folder:
    """A model folder of the checkout and the facts about it."""

    path: Path
    facts: Mapping[str, Any]

    @property
    def source(self) -> Path:
        """The file with the model's classes."""
        return self.path / "models" / self.facts["source"] if "source" in self.facts else self._only_source

    @property
    def _only_source(self) -> Path:
        return min((self.path / "models").glob("modeling_*.py"))

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of four layers."""
        return {**FACTS["config"], **self.facts.get("config", {})}

    @property
    def yamls(self) -> list[Path]:
        """The YAMLs of recipes."""
        found = sorted((self.path / "config").rglob("*.yaml"))
        return [path for path in found if "model_config" in (yaml.safe_load(path.read_text(encoding="utf-8")) or {})]

    def settings(self, yaml_file: Path | None = None) -> dict[str, Any]:
        """A YAML's document, for one rank."""
        own = self.path / self.facts["yaml"] if "yaml" in self.facts else self.yamls[0]
        path = yaml_file or own
        document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        sizes = document.setdefault("parallel_config", {})
        document["parallel_config"] = {**sizes, **{name: 1 for name in sizes if name.endswith("_size")}}
        document["model_config"].pop("platform_version", None)
        return document

    def plans(self) -> Iterator[tuple[str, Plan]]:
        """Yield the plans by name."""
        facts = self.facts
        attention, feed_forward = facts["attention"], facts["feed_forward"]
        yield "attention", each([(attention, attention)])
        yield "feed-forward", each([(feed_forward, feed_forward)])
        yield "both", each([(attention, attention), (feed_forward, feed_forward)])
        yield "layer", each([(facts["first"], facts["last"])])
        name = "model.layers.{}.{}".format
        yield "all layers", Plan((Scope(name(0, facts["first"]), name(LAYERS - 1, facts["last"])),))
        yield "late feed-forward", each([(feed_forward, feed_forward)], range(1, LAYERS))
        if self.path.name in FACTS["splits"]:
            yield "split", each([tuple(pair) for pair in FACTS["splits"][self.path.name]])

    def random_plans(self, count: int, seed: int) -> Iterator[tuple[str, Plan]]:
        """Yield plans with one to three scopes over random units, as their layers call them, in random layers."""
        draw = random.Random(f"{seed} {self.path.name}")
        seen = ran(self, self.source, without_scopes(self.settings()))[self.facts["model"]]["decode"]["seen"]
        inside = [match for name, _ in seen if (match := re.fullmatch(r"layers\.(\d+)\.(.+)", name))]
        for number in range(count):
            layers = sorted(draw.sample(range(LAYERS), draw.randint(1, LAYERS)))
            units = list(dict.fromkeys(match[2] for match in inside if int(match[1]) == layers[0]))
            edges = sorted(draw.sample(range(len(units) + 1), draw.choice((2, 2, min(4, len(units) + 1) // 2 * 2))))
            pairs = [(units[start], units[end - 1]) for start, end in zip(edges[::2], edges[1::2], strict=True)]
            yield f"random {seed}.{number}", each(pairs, layers)


def each(pairs: Sequence[tuple[str, str]], among: Sequence[int] = range(LAYERS)) -> Plan:
    """Return a plan with the same scopes in several layers."""
    name = "model.layers.{}.{}".format
    return Plan(tuple(Scope(name(layer, first), name(layer, last)) for layer in among for first, last in pairs))


def check(
    folder: Folder, plan: Plan, yaml_file: Path | None = None, flavour: ScopeFlavour = ScopeFlavour.SUPERKERNEL
) -> tuple[str, Rewritten | None]:
    """Return "entered", or why not, and the changed source."""
    settings = folder.settings(yaml_file)
    began_s = time.process_time()
    try:
        rewritten = rewrite(
            folder.source.read_text(encoding="utf-8"),
            plan,
            LAYERS,
            "executor.utils",
            Known(settings, folder.config),
            flavour,
        )
    except SktuneError as failure:
        return f"refused: {failure}", None
    finally:
        took_s = time.process_time() - began_s
    if took_s > ANSWER_S:
        return f"WRONG: the answer took {took_s:.0f} s", rewritten
    before = ran(folder, folder.source, without_scopes(settings))
    with tempfile.TemporaryDirectory() as scratch:
        changed = Path(scratch) / folder.source.name
        changed.write_text(rewritten.text, encoding="utf-8")
        after = ran(folder, changed, with_flag(settings, rewritten.readings))
    if isinstance(before, str) or isinstance(after, str):
        return f"not run: {before if isinstance(before, str) else after}", rewritten
    return compared(folder, plan, before, after), rewritten


def compared(folder: Folder, plan: Plan, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return "entered" if the changed model computes the same, in the plan's scopes in decode and in none elsewhere."""
    model = folder.facts["model"]
    for name, steps in after.items():
        for kind, step in steps.items():
            if step["result"] != before[name][kind]["result"]:
                return f"WRONG: {name} computes something else in {kind}"
            if (name != model or kind == "prefill") and any(scopes for _, scopes in step["seen"]):
                return f"WRONG: {name} has scopes in {kind}"
    seen = [("model." + name, scopes) for name, scopes in after[model]["decode"]["seen"]]
    units = [name for name, _ in seen]
    labels: set[str] = set()
    expected = [""] * len(seen)
    for scope in plan.scopes:
        if scope.first not in units or scope.last not in units:
            return f"WRONG: {scope.label} did not run"
        first, last = units.index(scope.first), len(units) - 1 - units[::-1].index(scope.last)
        found = {tuple(scopes) for _, scopes in seen[first : last + 1]}
        if len(found) != 1 or len(label := min(found)) != 1 or label[0] in labels:
            return f"WRONG: {scope.label} is in the scopes {sorted(found)}"
        labels.add(label[0])
        expected[first : last + 1] = label * (last + 1 - first)
    outside = [name for (name, scopes), label in zip(seen, expected, strict=True) if scopes and not label]
    return f"WRONG: {outside[0]} is in a scope" if outside else "entered"


def without_scopes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the model's own scopes off."""
    return {
        key: without_scopes(value) if isinstance(value, dict) else False if key == FLAG else value
        for key, value in settings.items()
    }


def with_flag(settings: dict[str, Any], readings: Sequence[Reading | None]) -> dict[str, Any]:
    """Return the settings as ``apply`` writes them."""
    text = turn_on(yaml.safe_dump(without_scopes(settings)), Path("settings.yaml"), readings)
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def ran(folder: Folder, source: Path, settings: Mapping[str, Any]) -> Any:
    """Return what the model and its drafts do in a decode and a prefill step; the last line of the failure if any."""
    facts = folder.facts
    task = {
        "source": str(source),
        "models": [facts["model"], *facts.get("drafts", [])],
        "followed": [facts["layer"], *facts.get("also", [])],
        "units": [str(facts[key]).partition(".")[0] for key in ("attention", "feed_forward")],
        "filled": facts.get("filled", []),
        "settings": settings,
        "config": folder.config,
    }
    return child(["benchmarks.field.symbolic"], task)


def child(module: Sequence[str], task: Any) -> Any:
    """Return the JSON that a module prints for a task; the last line of its failure."""
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, check=False, timeout=300)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def flags_read(folder: Folder, readings: Sequence[Reading | None], configuration: Path) -> str:
    """Return in how many YAMLs the program reads the flag that is written, of how many."""
    documents = []
    for path in folder.yamls:
        try:
            documents.append(yaml.safe_load(turn_on(path.read_text(encoding="utf-8"), path, readings)))
        except SktuneError as failure:
            return f"refused: {failure}"
    is_shared = not folder.facts.get("own_settings")
    if is_shared and any(reading and reading.root == "infer_config" for reading in readings):
        answers = child(["benchmarks.field.configuration", str(configuration)], documents)
    else:  # The runner's settings are the document itself.
        answers = [value_at(document, reading) for document in documents for reading in readings[:1]]
    return answers if isinstance(answers, str) else f"{sum(each is True for each in answers)} of {len(documents)}"


def value_at(document: Any, reading: Reading | None) -> Any:
    """Return the document's value at a path."""
    for key in reading.keys if reading else ():
        document = document.get(key) if isinstance(document, dict) else None
    return document


def main() -> int:
    """Print the table; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field")
    parser.add_argument("--repository", type=Path, required=True, help="a checkout of cann-recipes-infer")
    parser.add_argument("--random", type=int, default=0, help="number of random plans for each folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folders", nargs="*", help="of models/; all by default")
    chosen = parser.parse_args()
    configuration = chosen.repository / "executor" / "core" / "config" / "inference_config.py"
    wrong = False
    print("| folder | plan | result | flag read |\n| --- | --- | --- | --- |")
    for name in chosen.folders or FACTS["folders"]:
        folder = Folder(chosen.repository / "models" / name, FACTS["folders"][name])
        flags: dict[tuple[Reading | None, ...], str] = {}
        for plan_name, plan in (*folder.plans(), *folder.random_plans(chosen.random, chosen.seed)):
            result, rewritten = check(folder, plan)
            read = ""
            if rewritten:
                if rewritten.readings not in flags:
                    flags[rewritten.readings] = flags_read(folder, rewritten.readings, configuration)
                read = flags[rewritten.readings]
            wrong = wrong or "WRONG" in result
            print(f"| {name} | {plan_name} | {result} | {read} |", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
