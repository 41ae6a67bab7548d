"""A backend and a runner as another package brings them: this module and two entry points, nothing of sktune."""

import math
import time

from sktune.backends.base import Compiled, Step
from sktune.backends.info import BackendInfo
from sktune.backends.options import ListedOptions, OptionSpec
from sktune.core.outcome import FinalRow, Outcome, Speedup
from sktune.core.plan import Plan
from sktune.worker.jobs import Opened, ProcessComparison, RunnerTraits, silent

OPTIONS = ListedOptions("toy", {"pause": OptionSpec(("short", "long"), "short", "how long a scope waits")})
TOY = BackendInfo("toy", "toy:Toy", devices=("cpu",), options=OPTIONS, fingerprint=lambda spec: {"toy": "1"})
COMPUTED = BackendInfo("toy-computed", "toy:Toy", ("cpu",), OPTIONS, is_simulated=True, runner="toy:ToyRunner")


def wait_ms(plan, names):
    """Return how long the units outside scopes wait, and scopes with the long pause."""
    inside = sum(names.index(scope.last) - names.index(scope.first) + 1 for scope in plan.scopes)
    return len(names) - inside + 0.1 + sum(2 * (dict(scope.options).get("pause") == "long") for scope in plan.scopes)


class Toy:
    notes = "by the toy"

    def __init__(self, target, layout, inputs):
        self.target, self.names = target, [unit.name for unit in layout.units]

    def compile(self, plan, on_scope=lambda label: None):
        def run(*inputs):
            time.sleep(wait_ms(plan, self.names) / 1000)
            return self.target.decode_step(*inputs)

        return Compiled(Step(run), regions=len(plan.scopes), code_digest=plan.digest)

    def nothing(self):
        return {}

    written = references = nothing

    def with_operators(self, layout):
        return layout


class ToyRunner:
    """Computes what the toy would wait, in this process."""

    def __init__(self, setup):
        self.setup, self.opened, self.deadline_s = setup, None, math.inf

    def __enter__(self):
        return self

    def nothing(self, *_):
        return None

    __exit__ = close = sample_noise_floor = deliver = check_machine = nothing

    def run(self, job, report=silent, /):
        return job.run(self, report)

    def open(self):
        from sktune.targets.loading import load
        from sktune.targets.tracing import trace_layout

        if self.opened is None:
            layout = trace_layout(load(self.setup.spec), self.setup.space)
            traits = RunnerTraits(measures_time=False, has_references=False)
            self.opened = Opened(layout, "a toy", {"load": 1.0, "baseline": 1.0}, traits=traits)
        return self.opened

    def speedup(self, plan):
        names = [unit.name for unit in self.open().layout.units]
        base_ms, own_ms = wait_ms(Plan(), names), wait_ms(plan, names)
        return Speedup(base_ms, own_ms, base_ms / own_ms, None, 1)

    def judge(self, job, report, /):
        report("compile")
        return Outcome(speedup=self.speedup(job.plan), seconds={"compile": 0.1})

    def shortlist(self, job, report, /):
        return [name for name, plan in sorted(job.plans, key=lambda named: self.speedup(named[1]).latency_ms)]

    def verify(self, job, report, /):
        return {}

    def compare(self, job, report, /):
        plans = [("baseline", Plan()), *job.plans]
        return ProcessComparison([FinalRow(name, self.speedup(plan), "identical", None) for name, plan in plans])
