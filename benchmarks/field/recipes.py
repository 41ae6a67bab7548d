"""`sktune recipe init` on every YAML of a cann-recipes-infer checkout, checked with the program's launch and classes.

    python -m benchmarks.field.recipes --repository CHECKOUT [--table benchmarks/results/field-recipes.md]
    python -m benchmarks.field.recipes --repository OLDER --facts benchmarks/field/recipes-2025-12.yaml \\
        --release 3a0b2c8

The checkout is copied. For each YAML, the launch script runs with stand-ins for ``python3`` and ``taskset`` that only
note what would start, and the program's configuration classes, argument parsers and checks run with stand-ins for
torch_npu: on the copy with which a recipe would start the program, or, if ``recipe init`` refuses, on what it refuses.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import BadInputError
from sktune.recipes.discover import draft_recipe
from sktune.recipes.yaml_copy import varied_yaml
from sktune.source.yaml_flag import CAPTURED_MODE, NEEDED_MODE
from sktune.targets.recipe import Recipe, read_recipe

FACTS = Path(__file__).with_name("recipes.yaml")
"""What is expected of each YAML, as data: the ranks, or words of the refusal."""
PROGRAM_SIDE = Path(__file__).with_name("program_side.py")
COPIED = ("executor", "models", "module", "dataset")
LAUNCH_S = 60

# Stands in for python3: what reads the YAML and checks arguments runs, a rank is only noted; no NPU is found.
_PYTHON = """#!/bin/bash
case "$1$2" in
  *torch_npu*) exit 1 ;;
esac
case "$1" in
  -c|*validate_infer_args.py) exec {python} "$@" ;;
esac
echo "$LOCAL_RANK $RANK_OFFSET $(realpath -m "${{2#--yaml_file_path=}}")" >> "$FIELD_NOTES"
echo "[Main] Inference time (decode): 1.00 ms"
"""


@dataclass
class Case:
    """One YAML: what ``recipe init`` says, and what the program does with it.

    Attributes:
        yaml: path below ``models/``.
        refusal: the line with which it is refused; empty for a recipe.
        ranks, hosts, mode, batch, decoder: as the recipe states them.
        context: tokens of the longest context that is measured; 0 if it is not stated.
        wrong: facts that the program contradicts; all must be empty.
        checked: the parts of the program that accepted the copy, or confirmed the refusal.
        request: what to ask the program's own classes, if anything.
    """

    yaml: str
    refusal: str = ""
    ranks: int = 0
    hosts: int = 1
    mode: str = ""
    batch: str = ""
    decoder: str = ""
    context: int = 0
    wrong: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    request: dict[str, Any] | None = None


def main() -> int:
    """Print a line for each YAML; return 1 if a stated fact is wrong or differs from ``FACTS``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--table", type=Path, help="Write the table to this file.")
    parser.add_argument("--facts", type=Path, default=FACTS, help="What is expected of this release.")
    parser.add_argument("--release", default="fbc225d", help="The checkout's commit, for the table.")
    parser.add_argument("--rewrite-facts", action="store_true", help="Keep what is found as what is expected.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "checkout"
        for name in COPIED:
            if (options.repository / name).is_dir():
                shutil.copytree(options.repository / name, root / name, symlinks=True)
        for set_env in (root / "executor/scripts/set_env.sh", *root.glob("models/*/set_env.sh")):
            # As `recipe init` asks; they need CANN. Older scripts have the first line, and write elsewhere without it.
            set_env.write_text("export ON_CLOUD=0\nexport IPs=(${SKTUNE_HOSTS//,/ })\n")
        cases = [_case(root, file, Path(scratch)) for file in sorted((root / "models").glob("*/*/**/*.yaml"))]
        _ask_the_program(cases)
    facts = {case.yaml: case.refusal.partition("; name another")[0] or case.ranks for case in cases}
    if options.rewrite_facts:
        options.facts.write_text(yaml.safe_dump(facts, sort_keys=True, width=120))
    expected = yaml.safe_load(options.facts.read_text())
    unexpected = [name for name in facts.keys() | expected.keys() if facts.get(name) != expected.get(name)]
    for case in cases:
        print(case.yaml, case.refusal or f"{case.ranks} ranks", *case.wrong, sep="\n    ")
    for name in sorted(unexpected):
        print(f"differs from {options.facts.name}: {name}: {facts.get(name)!r} instead of {expected.get(name)!r}")
    if options.table:
        options.table.write_text(table(cases, options.release))
    return 1 if unexpected or any(case.wrong for case in cases) else 0


def _case(root: Path, file: Path, scratch: Path) -> Case:
    model = root / "models" / file.relative_to(root / "models").parts[0]
    case = Case(file.relative_to(root / "models").as_posix())
    try:
        draft = draft_recipe(model, file)
    except BadInputError as refused:
        case.refusal = str(refused).replace(f"{root}/", "")
        _confirm_refusal(case, root, model, file, scratch)
        return case
    path = scratch / "recipe.yaml"
    path.write_text(draft.text)
    recipe = read_recipe(path)
    assert recipe.yaml is not None
    copy = file.with_stem(f"{file.stem}_sktune")
    copy.write_text(varied_yaml(file, recipe.yaml.set))
    stated = {
        "ranks": recipe.all_ranks,
        "mode": CAPTURED_MODE if recipe.backend == "npugraph-ex" else NEEDED_MODE,
        "batch": next((line for line in draft.found if line.startswith("batch_size")), ""),
        "decoder": next((line for line in draft.found if line.startswith("its decoder")), ""),
        "context": _context(draft.found),
    }
    case.ranks, case.hosts, case.mode = recipe.all_ranks, recipe.hosts, str(stated["mode"])
    case.batch, case.decoder, case.context = str(stated["batch"]), str(stated["decoder"]), _context(draft.found)
    for host in sorted({0, recipe.hosts - 1}):
        case.wrong += tuple(_wrong_on(host, root, recipe, copy, scratch))
        shutil.rmtree(model / "res", ignore_errors=True)
    case.checked += ("launch script",)
    case.request = {"root": str(root), "model": model.name, "yaml": str(copy), "stated": stated}
    return case


def _wrong_on(host: int, root: Path, recipe: Recipe, copy: Path, scratch: Path) -> Iterator[str]:
    """Yield what is wrong with what the launch script starts on one of the recipe's hosts."""
    started, output = _launch(root, recipe.argv(copy), scratch, host, recipe.hosts)
    if len(started) != recipe.ranks:
        yield f"the script starts {len(started)} ranks on host {host}: {output[-300:]}"
    for line in started:
        _, offset, file = line.split(" ", 2)
        if recipe.hosts > 1 and int(offset) != host * recipe.ranks:
            yield f"the ranks of host {host} begin with {offset}"
            break
        if Path(file) != copy:
            yield "the ranks get another YAML"
            break
    logs = [log for log in root.glob(recipe.logs or "") if log.stat().st_size]
    if len(logs) != recipe.ranks:
        yield f"{len(logs)} logs match {recipe.logs} on host {host}"


def _confirm_refusal(case: Case, root: Path, model: Path, file: Path, scratch: Path) -> None:
    """Let the program confirm that it does not accept the mode, if that is the reason."""
    if "the program refuses this mode" in case.refusal:
        copy = scratch / case.yaml.replace("/", "-")
        changes = {"model_config.exe_mode": NEEDED_MODE, "model_config.enable_static_kernel": False}
        copy.write_text(varied_yaml(file, changes))
        case.request = {"root": str(root), "model": model.name, "yaml": str(copy), "stated": {"refused": True}}
    elif "refuses the YAML as it is" in case.refusal:
        case.request = {"root": str(root), "model": model.name, "yaml": str(file), "stated": {"refused": True}}


def _launch(root: Path, argv: list[str], scratch: Path, host: int, hosts: int) -> tuple[list[str], str]:
    """Run a launch script without its ranks; return the rank, offset and YAML of each, and the output."""
    addresses = [f"127.0.0.{number + 1}" for number in range(hosts)]
    stubs, notes = scratch / "bin", scratch / "notes"
    stubs.mkdir(exist_ok=True)
    notes.write_text("")
    scripts = {
        "python3": _PYTHON.format(python=sys.executable),
        "taskset": '#!/bin/bash\nexec "${@:3}"\n',
        "pgrep": "#!/bin/bash\nexit 1\n",
        "hostname": f"#!/bin/bash\necho {addresses[host]}\n",
    }
    for name, text in scripts.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "FIELD_NOTES": str(notes),
                   "SKTUNE_HOSTS": ",".join(addresses)}  # fmt: skip
    done = subprocess.run(
        argv, cwd=root, env=environment, capture_output=True, text=True, timeout=LAUNCH_S, check=False
    )
    return notes.read_text().splitlines(), done.stdout + done.stderr


def _ask_the_program(cases: list[Case]) -> None:
    """Ask the program's own classes, in one process for each model: the models' packages have the same names."""
    by_model: dict[str, list[Case]] = {}
    for case in cases:
        if case.request:
            by_model.setdefault(case.request["model"], []).append(case)
    for asked in by_model.values():
        requests = [case.request for case in asked if case.request]
        done = subprocess.run(
            [sys.executable, str(PROGRAM_SIDE)], input=json.dumps(requests), capture_output=True, text=True,
            timeout=600, check=False, cwd=requests[0]["root"],
        )  # fmt: skip
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1]
            if not last.startswith("OSError"):  # files of the model that the checkout does not have
                raise SystemExit(f"{asked[0].yaml}: the program's classes fail: {done.stderr[-2000:]}")
            for case in asked:
                case.checked += ("(its program cannot run here: OSError)",)
            continue
        for case, said in zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True):
            case.checked += tuple(said["checked"])
            case.wrong += tuple(said["wrong"])
            if case.refusal and not said["refusals"]:
                case.wrong += ("the program's checks that could be run accept it",)


def table(cases: list[Case], release: str) -> str:
    """Return the table in Markdown: recipes with what they state, and refusals by reason."""
    written = [case for case in cases if not case.refusal]
    parts = Counter(part for case in written for part in case.checked)
    lines = [
        "# Recipes for cann-recipes-infer",
        "",
        f"`python -m benchmarks.field.recipes --repository CHECKOUT` on {len(cases)} YAMLs below `models/` "
        f"(at {release}): {len(written)} recipes are written, {len(cases) - len(written)} are refused. "
        "Nothing ran on an NPU. Copies were given to: "
        + ", ".join(f"{part} ({count})" for part, count in parts.most_common())
        + ".",
        "",
        f"Stated facts that the program contradicts: {sum(len(case.wrong) for case in cases)}.",
        *(f"* {case.yaml}: {'; '.join(case.wrong)}" for case in cases if case.wrong),
        "",
        "| recipe for | mode | ranks | servers | batch | context, at most | decoder layer | accepted by |",
        "| --- | --- | ---: | ---: | --- | ---: | --- | --- |",
        *map(_row, written),
        "",
        "| refused | reason | confirmed by |",
        "| --- | --- | --- |",
        *(f"| {case.yaml} | {_reason(case)} | {', '.join(case.checked) or '-'} |" for case in cases if case.refusal),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _row(case: Case) -> str:
    cells = (
        case.yaml, case.mode, case.ranks, case.hosts, _batch(case), case.context or "not known", _decoder(case),
        ", ".join(case.checked),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _reason(case: Case) -> str:
    reason = case.refusal.partition("; name another")[0]
    return (reason.partition(" cannot be tuned: ")[2] or reason).replace("|", "\\|")


def _context(found: list[str]) -> int:
    line = next((line for line in found if " tokens of context" in line), "")
    return int(line.partition("at most ")[2].partition(" ")[0] or 0)


def _batch(case: Case) -> str:
    return case.batch.removeprefix("batch_size is ").partition(";")[0]


def _decoder(case: Case) -> str:
    return case.decoder.removeprefix("its decoder layer is ").partition(" in ")[0]


if __name__ == "__main__":
    sys.exit(main())
