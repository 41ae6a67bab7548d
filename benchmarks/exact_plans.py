"""How many plans that are exact by construction differ on steps that no check has seen.

    python -m benchmarks.exact_plans --seconds 200
    python -m benchmarks.exact_plans --seconds 200 --model llama
    python -m benchmarks.exact_plans --table benchmarks/results/exact-plans-cpu-2-cores.md

Plans are drawn of two populations that nothing was tuned on: ``random``, one plan of one program of
``benchmarks.random_programs``, and ``models``, plans of the presets and of the example, as in
``benchmarks.reference_plans``, without the scopes that are not exact. Options have values that are. A plan that is
exact and passes what a search asks of it (the quick check, the check of regions, and ``FIRST_STEPS`` decode steps) is
compared on ``FURTHER_STEPS`` others: of random programs with state that is drawn anew and, in half of the contexts,
special values and extreme tokens in it. NaNs count as equal, as ``sktune.backends.inductor.exactness`` says.

One row for each plan is appended to ``--rows``; run the same command again to continue.
"""

import argparse
import itertools
import json
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_programs import described, program_of
from benchmarks.reference_bits import ROOT, made_with, prepare_environment, use_threads
from benchmarks.reference_plans import EXACT_KIND, MODELS, Model, drawn, opened
from sktune.backends.base import CompileError, Step
from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.inductor.info import EXACT
from sktune.core.codec import decoded, encoded
from sktune.core.errors import NotDeterministicError, TargetError
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.core.verification import CONFIDENCE, EXACT_VERIFY_STEPS
from sktune.targets import presets
from sktune.targets.base import Inputs, Target, decode_inputs
from sktune.targets.state import complete_state
from sktune.targets.tracing import trace_layout
from sktune.worker.replays import Replay, run_once
from sktune.worker.step_check import Digester, contexts, replay_of
from sktune.worker.verifier import Verifier

FIRST_PROGRAMS = (6_000_000, 7_000_000, 8_000_000)
"""Seeds from which programs are drawn, by processes that run side by side."""
FIRST_SEED = 1_000_000
"""Of the prefills of further steps; no search has so many contexts."""
FIRST_STEPS = EXACT_VERIFY_STEPS
FURTHER_STEPS = 2048
RATE = 1 / 680
"""Plans that differ as often are to be found: the bound that a search tells after 2,048 steps."""
MAX_DRAWS = 1000
"""Of plans of one model, which has few whose scopes are all exact."""
UNITS = ("before", "inside", "after")
SPECIAL = (inf, -inf, nan, 0.0, -0.0, 1e-40, -1e-45, 6e-8, -6e-5, 65504.0, -3.4e38, 1.0 + 2.0**-23)
TOKENS = (0, -1, 2**31, 2**40 + 2**32 + 1, 2**63 - 1, -(2**63))
MEANING = f"""\
One plan of each random program; of a model, plans of its exact scopes. Refused: not compiled. Rejected: exact, and
found to differ by the quick check, the check of regions or the first {FIRST_STEPS} steps. Equal: identical on all
further steps, whose number is added up; NaNs count as equal there. Bound: the next plan, if it is drawn as these were,
exact and not rejected, differs in 1 step of 680 with a lower probability, at 95% confidence; that such a plan may go
unseen in its further steps is counted. The plans of one model share regions: they show less than their number."""
REFUSED, INEXACT, REJECTED, EQUAL, DIFFERS = "refused", "not exact", "rejected", "equal", "differs"

Row = dict[str, Any]


class Bench:
    """A target with its baseline, on which plans are compared."""

    def __init__(self, target: Target, backend: InductorBackend) -> None:
        self._target, self._backend = target, backend
        self._baseline = backend.compile(Plan())
        self._verifier = Verifier(target, backend, self._baseline)
        self._digest = Digester()
        self._expected: list[tuple[Replay, torch.Tensor]] = []

    def row(self, plan: Plan) -> Row:
        """Return what becomes of a plan."""
        try:
            if any(doubts := self._backend.exactness(plan).values()):
                return {"outcome": INEXACT, "detail": next(filter(None, doubts))[0]}
            compiled = self._backend.compile(plan)
        except CompileError as failure:
            return {"outcome": REFUSED, "detail": str(failure)}
        assert compiled.is_exact
        verified = self._verifier.quick(plan, compiled)
        if not verified.is_identical:
            return {"outcome": REJECTED, "detail": f"quick check: {verified}"}
        thorough = self._verifier.thorough(plan, compiled, FIRST_STEPS, inf, lambda _: None)
        assert thorough
        if not thorough.is_identical:
            found = "regions" if thorough.differing_regions else f"first {FIRST_STEPS} steps"
            return {"outcome": REJECTED, "detail": f"{found}: {thorough}"}
        steps = 0
        for replay, expected in self._contexts():
            differing = (expected != digests(compiled.step, replay, self._digest)).any(-1).nonzero()
            if len(differing):
                return {"outcome": DIFFERS, "detail": f"seed {replay.seed}, step {int(differing[0])}"}
            steps += len(expected)
        return {"outcome": EQUAL, "steps": steps, "first_steps": thorough.steps}

    def _contexts(self) -> list[tuple[Replay, torch.Tensor]]:
        """Return the contexts of the further steps, each with the digests of the baseline's results."""
        if not self._expected:
            state, step = complete_state(self._target, self._backend.written()), self._baseline.step
            for place in contexts(self._target, state, step, FURTHER_STEPS):
                replay = replay_of(self._target, state, step, replace(place, seed=FIRST_SEED + place.seed))
                self._expected.append((replay, digests(step, replay, self._digest)))
        return self._expected


@torch.no_grad()
def digests(step: Step, replay: Replay, digester: Digester) -> torch.Tensor:
    """Return the digests of all outputs and state after each step, in which all NaNs are alike."""
    replay.start.restore()
    step.prepare()
    rows = []
    for inputs in replay.inputs:
        tensors = [*run_once(step, inputs).values(), *replay.state.values()]
        floats, others = (
            [each.flatten() for each in tensors if each.is_floating_point() is kind] for kind in (True, False)
        )
        values = torch.cat(floats)  # in the widest type, which keeps all values
        rows.append(digester({"floats": values.masked_fill_(values.isnan(), nan), "others": torch.cat(others)}))
    return torch.stack(rows)


def with_special_values(target: Target) -> Target:
    """Return the target with another prefill for further steps: random state, with special values for odd seeds."""

    def prefill(seed: int, steps: int) -> list[Inputs]:
        inputs = target.prefill(seed, steps)
        if seed < FIRST_SEED:
            return list(inputs)
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        for tensor in target.state.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 2.0 ** rng.randint(-4, 4))
        if seed % 2:
            for tensor in rng.sample(list(target.state.values()), 2):
                _place(rng, tensor, SPECIAL)
            for token, hidden in inputs:
                if rng.random() < 0.5:
                    _place(rng, hidden, SPECIAL)
                if rng.random() < 0.1:
                    _place(rng, token, TOKENS)
        return list(inputs)

    return replace(target, prefill=prefill)


def _place(rng: random.Random, tensor: torch.Tensor, values: Sequence[float]) -> None:
    tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice(values)


def random_rows(done: Sequence[Row], first: int) -> Iterator[Row]:
    """Yield a row for each further random program, from the seed ``first`` on."""
    known = {row["name"] for row in done}
    for seed in (seed for seed in itertools.count(first) if str(seed) not in known):
        torch.compiler.reset()
        rng = random.Random(seed)
        program = program_of(seed, rng.randint(2, 7))
        plan = drawn_plan(rng)
        row: Row = {"population": "random", "name": str(seed), "plan": encoded(plan)}
        try:
            target = with_special_values(program)
            layout = trace_layout(target, SpaceSpec())
            result = Bench(target, InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])).row(plan)
        except (TargetError, CompileError, NotDeterministicError) as failure:
            result = {"outcome": REFUSED, "detail": str(failure)}
        if result["outcome"] in (REJECTED, DIFFERS):
            result["program"] = described(program)
        yield row | result


def drawn_plan(rng: random.Random) -> Plan:
    """Return a plan of a random program with random scopes and options that are exact."""
    runs: list[list[str]] = []
    while not runs:
        kind = "out"
        for unit in UNITS:
            before, kind = kind, rng.choice(("out", "new", "join"))
            if kind == "join" and before != "out":
                runs[-1].append(unit)
            elif kind != "out":
                runs.append([unit])
    options: dict[str, Option] = {**EXACT, "cpp_wrapper": rng.random() < 0.1}
    options["emulate_precision_casts"] = rng.random() < 0.8  # in float32 both are exact
    return Plan(tuple(Scope(run[0], run[-1], tuple(sorted(options.items()))) for run in runs))


def model_rows(done: Sequence[Row], name: str) -> Iterator[Row]:
    """Yield a row for each further plan of a model: of a drawn plan, those scopes that are exact, if there are any."""
    model = opened(MODELS.get(name) or Model(name, name, 64))
    bench = Bench(model.target, model.backend)
    known = {decoded(Plan, row["plan"]) for row in done if row["name"] == name}
    for whole in itertools.islice(drawn(model.space, EXACT_KIND, f"exact plans of {name}"), MAX_DRAWS):
        doubts = model.backend.exactness(whole)
        exact = Plan(tuple(scope for scope in whole.scopes if not doubts[scope.label]))
        plan = exact if exact.scopes else whole
        if plan not in known:
            known.add(plan)
            yield {"population": "models", "name": name, "plan": encoded(plan)} | bench.row(plan)


def bound(plans: int, steps: int) -> float:
    """Return below which share of plans differ in one of ``1 / RATE`` steps, if none of ``plans`` did in ``steps``.

    With the confidence of ``sktune.core.verification``.
    """
    seen = 1 - (1 - RATE) ** steps
    return min(1.0, (1 - (1 - CONFIDENCE) ** (1 / plans)) / seen) if plans else 1.0


def table(rows: Sequence[Row]) -> str:
    """Return the counts of each population, of each model and of both populations, and the bounds, as Markdown."""
    lines = [
        "| population | programs | plans | refused | not exact | rejected | equal | differ | steps | bound |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    parts = {name: [row for row in rows if row["population"] == name] for name in ("random", "models")}
    for row in parts["models"]:
        parts.setdefault(row["name"], []).append(row)
    for name, of in {**parts, "both": rows}.items():
        count = Counter(row["outcome"] for row in of)
        steps = [row["steps"] for row in of if row["outcome"] == EQUAL]
        share = "none" if count[DIFFERS] else f"{bound(count[EQUAL], min(steps, default=0)):.2%}"
        lines.append(
            f"| {name} | {len({row['name'] for row in of}):,} | {len(of):,} | {count[REFUSED]:,} | {count[INEXACT]:,} "
            f"| {count[REJECTED]:,} | {count[EQUAL]:,} | {count[DIFFERS]:,} | {sum(steps):,} | {share} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Compare further plans, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted({*MODELS, *presets.preset_names()})
    parser.add_argument("--model", choices=names, help="whose plans; without it, random programs")
    parser.add_argument("--first", type=int, choices=FIRST_PROGRAMS, default=FIRST_PROGRAMS[0], help="program's seed")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no further plan after this time")
    parser.add_argument("--rows", type=Path, default=ROOT / "runs" / "exact-plans.jsonl")
    parser.add_argument("--table", type=Path, help="write the table of all rows to this file instead")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()] if arguments.rows.exists() else []
    if arguments.table:
        arguments.table.write_text(document(rows), encoding="utf-8")
        return
    ends_s = time.monotonic() + arguments.seconds
    warnings.simplefilter("ignore")
    prepare_environment(ROOT / "runs" / "exact-plans-cache")
    use_threads()
    further = model_rows(rows, arguments.model) if arguments.model else random_rows(rows, arguments.first)
    arguments.rows.parent.mkdir(exist_ok=True)
    with arguments.rows.open("a", encoding="utf-8") as file:
        for row in further:
            file.write(json.dumps(row) + "\n")
            file.flush()
            print({name: row[name] for name in ("name", "outcome", "detail", "steps") if name in row}, flush=True)
            if time.monotonic() > ends_s:
                break


def document(rows: Sequence[Row]) -> str:
    """Return the results as a page."""
    use_threads()
    machine = ", ".join(f"{name} {value}" for name, value in made_with().items())
    found = [row for row in rows if row["outcome"] in (REJECTED, DIFFERS)]
    return "\n".join([
        f"# python -m benchmarks.exact_plans, {time.strftime('%Y-%m-%d')}", "", machine, "", MEANING, "",
        table(rows), "",
        *(f"- {row['outcome']}: {row['name']}: {row['detail']}" for row in found), "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
