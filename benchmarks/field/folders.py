"""`sktune recipe init` on every folder and YAML of whole repositories, and `doctor --recipe` on each recipe.

    python -m benchmarks.field.folders NAME=CHECKOUT ... [--table benchmarks/results/field-folders.md]

A folder, or a YAML of a model, gets a recipe or is refused in one line. What is expected is in ``folders.yaml``, with
the commit that was looked at: all that is not listed there is refused. Nothing of a checkout is changed or started.
``python -m benchmarks.field.recipes`` checks what a recipe says with the program's own launch and classes.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError
from sktune.core.events.commands import State
from sktune.recipes.discover import draft_recipe
from sktune.recipes.recipe_check import examine_recipe
from sktune.recipes.recipe_draft import RecipeDraft

FACTS = Path(__file__).with_name("folders.yaml")
CHECKED = ("command", "YAML", "start scripts", "weights", "logs")
"""Findings of ``doctor --recipe`` that do not depend on the machine, where neither weights nor CANN are installed."""
HEAD = """`python -m benchmarks.field.folders`: `recipe init` on every folder, and on every YAML of a model; then
`doctor --recipe` on each recipe. The machine has no NPU, no CANN and no weights, and the checkouts are as they come, so
that the placeholders of their scripts are not filled in. Nothing was started. Of `doctor`'s findings those are shown
that are not good, of command, YAML, start scripts, weights and logs.

Looked at: cann-recipes-infer fbc225d (21 August 2026) and 3a0b2c8 (31 December 2025), vllm-ascend 182b75ea84 (22 August
2026), omni-infer c8bc2bb (1 August 2025, without four arrays that could not be had), and torchair fced8842 (1 June
2026)."""
_REASONS = {
    "cannot be tuned": "the YAML cannot be tuned",
    "to start a model with": "several YAMLs, or none",
    "no max_new_tokens in its YAMLs": "no decode step in a model's YAMLs",
    "show no decode step": "Python programs without a decode step",
    "a decode step is seen": "a start script without a decode step",
    "no Python program": "no program",
    "programs with a decode step": "several programs",
}  # fmt: skip


@dataclass(frozen=True)
class Drafted:
    """What became of one folder or YAML.

    Attributes:
        name: its path in the repository.
        refusal: one line; empty for a recipe.
        draft: the recipe.
        doctor: states of the findings on it that are not good, by what they are about.
    """

    name: str
    refusal: str = ""
    draft: RecipeDraft | None = None
    doctor: str = ""

    @property
    def fact(self) -> dict[str, Any]:
        """What is kept of a recipe."""
        assert self.draft
        values = self.draft.values
        return {
            "command": values["command"],
            "backend": values["backend"],
            "ranks": values.get("ranks", 1) * values.get("hosts", 1),
            "context": _between(self.draft.found, "at most ", " tokens of context"),
            "doctor": self.doctor,
        }

    @property
    def reason(self) -> str:
        """The kind of its refusal."""
        return next((kind for words, kind in _REASONS.items() if words in self.refusal), self.refusal)


def drafted(root: Path, scratch: Path) -> Iterator[Drafted]:
    """Yield what becomes of each folder of a repository, and of each YAML of a model."""
    folders = [root, *(path for path in sorted(root.rglob("*")) if path.is_dir() and ".git" not in path.parts)]
    for folder in folders:
        yield _drafted(root, folder, None, scratch)
    for file in sorted(root.glob("models/*/config/**/*.yaml")):
        model = root.joinpath(*file.relative_to(root).parts[:2])
        yield _drafted(root, model, file, scratch)


def _drafted(root: Path, folder: Path, file: Path | None, scratch: Path) -> Drafted:
    name = (file or folder).relative_to(root).as_posix()
    try:
        draft = draft_recipe(folder, file)
    except BadInputError as refused:
        return Drafted(name, str(refused).replace(f"{root}/", ""))
    path = scratch / "recipe.yaml"
    path.write_text(draft.text, encoding="utf-8")
    findings = [each for each in examine_recipe(path) if each.what in CHECKED and each.state is not State.OK]
    return Drafted(name, "", draft, ", ".join(f"{each.what} {each.state}" for each in findings))


def _between(lines: list[str], before: str, after: str) -> str:
    found = next((line for line in lines if after in line), "")
    return found.partition(before)[2].partition(after)[0] or "not known"


def main() -> int:
    """Print what differs from ``FACTS``; return 1 if anything does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("repositories", nargs="+", metavar="NAME=CHECKOUT")
    parser.add_argument("--table", type=Path, help="Write the table to this file.")
    parser.add_argument("--rewrite-facts", action="store_true", help="Keep what is found as what is expected.")
    options = parser.parse_args()
    expected = yaml.safe_load(FACTS.read_text(encoding="utf-8")) if FACTS.is_file() else {}
    results: dict[str, list[Drafted]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repository in options.repositories:
            name, _, path = repository.partition("=")
            results[name] = list(drafted(Path(path).resolve(), Path(scratch)))
    facts = {name: {each.name: each.fact for each in found if not each.refusal} for name, found in results.items()}
    if options.rewrite_facts:
        expected = {**expected, **facts}
        FACTS.write_text(yaml.safe_dump(expected, sort_keys=True, width=120), encoding="utf-8")
    differing = 0
    for name, recipes in facts.items():
        for each in sorted(recipes.keys() | expected.get(name, {}).keys()):
            if recipes.get(each) != expected.get(name, {}).get(each):
                differing += 1
                print(f"{name}: {each}: {recipes.get(each)} instead of {expected.get(name, {}).get(each)}")
    several_lines = [each.name for found in results.values() for each in found if "\n" in each.refusal]
    if options.table:
        options.table.write_text(table(results), encoding="utf-8")
    print(f"{sum(map(len, results.values()))} folders and YAMLs, {differing} differ from {FACTS.name}")
    return 1 if differing or several_lines else 0


def table(results: dict[str, list[Drafted]]) -> str:
    """Return the tables in Markdown: recipes, and refusals by reason."""
    lines = [
        "# Recipes for whole repositories",
        "",
        HEAD,
        "",
        "| repository | folders and YAMLs | recipes | refused, by reason |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, found in results.items():
        reasons = Counter(each.reason for each in found if each.refusal)
        refused = "; ".join(f"{kind}: {count}" for kind, count in reasons.most_common())
        lines.append(f"| {name} | {len(found)} | {sum(not each.refusal for each in found)} | {refused} |")
    lines += [
        "",
        "| recipe for | backend | ranks | context, at most | `doctor --recipe` |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for name, found in results.items():
        for each in found:
            if not each.refusal:
                fact = each.fact
                cells = (f"{name}: {each.name}", fact["backend"], fact["ranks"], fact["context"], fact["doctor"] or "-")
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
