"""The worker: an isolated process that loads the model once and runs trials, until one of them kills it.

Started by ``client`` as ``python -m sktune.worker.server IN OUT BACKEND``; requests and answers are JSON lines
on these two file descriptors, so that the output of compilers goes to the trial's log and not into the protocol.
"""

import ctypes
import faulthandler
import gc
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from sktune.core.errors import (
    BackendError,
    MachineError,
    SktuneError,
    TargetError,
    described,
    first_line,
    machine_failure,
)

logger = logging.getLogger(__name__)

STARTED_S = time.perf_counter()
SCRATCH = "SKTUNE_SCRATCH"
"""Variable of the environment: the folder for temporary files of compilers, deleted when the worker has ended."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MEMORY_SHARE = 0.9
"""Share of the memory available at the start that a worker may use before its allocations fail."""


class Session:
    """The state of one worker: the judge, which holds target and backend."""

    def __init__(self, answers: TextIO, importing_s: float) -> None:
        self._answers, self._importing_s = answers, importing_s
        self._judge: Any = None

    def answer(self, **message: Any) -> None:
        """Send one line to the client."""
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def serve(self, requests: TextIO) -> None:
        """Answer requests until the client closes its pipe."""
        for line in requests:
            request = json.loads(line)
            try:
                log_to(request["log"])
                if self._judge and request["left_s"] is not None:
                    self._judge.ends_s = time.monotonic() + request["left_s"]
                getattr(self, "do_" + request["do"])(request)
            except SktuneError as failure:
                self.answer(error=type(failure).__name__, message=str(failure))
                traceback.print_exc()  # last: the disk may be full
            except Exception as failure:  # noqa: BLE001 - the client must get every error
                kind = MachineError if machine_failure(failure) else BackendError
                self.answer(error=kind.__name__, message=f"{described(failure)}; see {request['log']}")
                traceback.print_exc()

    def do_open(self, request: Mapping[str, Any]) -> None:
        """Load the model, trace its layout, capture and record the baseline."""
        from sktune.measure.devices import ran_out_of_memory

        limit_memory()  # only now: while this process was started, another worker may have held a model
        try:
            self._open(request)
        except Exception as failure:
            if not ran_out_of_memory(failure):
                raise
            reason = first_line(failure.__cause__ or failure)
            fix = "choose a smaller --scale, --batch or --context"
            raise TargetError(f"the model does not fit into memory: {reason}; {fix}") from failure

    def _open(self, request: Mapping[str, Any]) -> None:
        import torch

        from sktune.backends import backend_info
        from sktune.core.contents import imported_modules
        from sktune.core.space import SpaceSpec
        from sktune.measure.devices import import_torch_npu, make_deterministic
        from sktune.targets import TargetSpec
        from sktune.targets.base import decode_inputs
        from sktune.targets.loading import load
        from sktune.targets.tracing import trace_layout
        from sktune.worker.evaluator import PlanEvaluator

        torch.set_grad_enabled(False)
        spec = TargetSpec.from_dict(request["spec"])
        info = backend_info(spec.backend)
        if spec.device == "npu":
            import_torch_npu()
        make_deterministic(spec.device)
        target = load(spec, takes_torchair=info.takes_torchair(spec.device))
        layout = trace_layout(target, SpaceSpec.model_validate(request["space"]))
        caches = [
            Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name in os.environ
        ]
        modules = imported_modules(spec.package, spec.home, tuple(caches))
        loaded = time.perf_counter()
        backend = info.load()(target, layout, decode_inputs(target, 0, 1)[0], **info.settings_of(spec))
        if info.is_simulated:
            layout = layout.with_time_shares(backend.time_shares())  # on the meta device nothing takes time
        if request["is_first"]:
            layout = backend.with_operators(layout)
        facts = {} if request["delivered"] is None else {"not_delivered": _install(info, *request["delivered"])}
        self._judge = PlanEvaluator(target, backend, lambda: self.answer(alive=True))
        self.answer(
            opened={
                "layout": layout.to_dict(),
                "description": "; ".join(filter(None, (target.description or spec.name, backend.notes))),
                "facts": {"model_difference": self._judge.model_difference, **facts},
                "modules": modules,
                "baseline_digest": self._judge.baseline_digest if request["is_first"] else "",
                "seconds": {
                    "load": loaded - STARTED_S - self._importing_s,
                    "baseline": time.perf_counter() - loaded + self._importing_s,
                },
            }
        )

    def do_trial(self, request: Mapping[str, Any]) -> None:
        """Judge one plan."""
        from sktune.core.outcome import Outcome, Reason
        from sktune.core.plan import Plan
        from sktune.measure.noise_floor import Threshold
        from sktune.worker.evaluator import OutOfMemoryDuringTrialError

        try:
            outcome = self._judge.judge(
                Plan.from_dict(request["plan"]),
                self._stage,
                known=request["known"],
                banned=request["banned"],
                threshold=Threshold(**request["threshold"]),
                keep=_sample_sink(request),
                on_scope=lambda label: self.answer(scope=label),
                on_score=lambda outcome: self.answer(scored=outcome.to_dict()),
            )
        except OutOfMemoryDuringTrialError as failure:
            traceback.print_exc()
            crashed = Outcome(Reason.CRASHED, f"out of memory: {failure}", blamed=failure.blamed)
            self.answer(outcome=crashed.to_dict())
            sys.exit(1)
        self.answer(outcome=outcome.to_dict())

    def do_check(self, request: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Compile one operator."""
        self._stage("compile")
        self._judge.check_machine()
        self.answer(sound=True)

    def do_floor(self, request: Mapping[str, Any]) -> None:
        """Compare the baseline with itself."""
        sample = self._judge.sample_noise_floor(request["before_trial"], _sample_sink(request))
        self.answer(floor=sample and sample.to_dict())

    def do_shortlist(self, request: Mapping[str, Any]) -> None:
        """Rank plans by speed."""
        self.answer(shortlisted=self._judge.shortlisted(_plans(request), self._stage, _sample_sink(request)))

    def do_verify(self, request: Mapping[str, Any]) -> None:
        """Compare a plan with the baseline far more thoroughly than a trial does."""
        from sktune.core.plan import Plan

        verified = self._judge.verify(
            Plan.from_dict(request["plan"]), self._stage, steps=request["steps"], seconds=request["seconds"],
            banned=request["banned"],
        )  # fmt: skip
        self.answer(verified=verified and verified.to_dict())

    def do_final(self, request: Mapping[str, Any]) -> None:
        """Compare the fastest plans."""
        rows, noise = self._judge.final(
            _plans(request), self._stage, references=request["references"], keep=_sample_sink(request)
        )
        self.answer(final=[asdict(row) for row in rows], noise=noise)

    def do_deliver(self, request: Mapping[str, Any]) -> None:
        """Write a plan's compiled code into a folder."""
        from sktune.core.plan import Plan

        self._stage("compile")
        delivery = self._judge.deliver(Plan.from_dict(request["plan"]), Path(request["folder"]))
        self.answer(delivered=delivery and delivery.to_dict())

    def _stage(self, name: str) -> None:
        self.answer(stage=name)


def _install(info: Any, folder: str, delivery: Mapping[str, Any]) -> str:
    """Load delivered code; return why that failed, "" if it did not."""
    from sktune.core.delivery import Delivery

    return str(info.install(Path(folder), Delivery.from_dict(delivery)))


def _plans(request: Mapping[str, Any]) -> list[tuple[str, Any]]:
    from sktune.core.plan import Plan

    return [(name, Plan.from_dict(plan)) for name, plan in request["plans"]]


def _sample_sink(request: Mapping[str, Any]) -> Any:
    """Return a ``SampleSink`` that writes to the request's file."""
    from sktune.measure import samples

    def keep(names: Sequence[str], measurement: Any) -> None:
        try:
            samples.write(Path(request["samples"]), names, measurement)
        except OSError as failure:  # a full disk says nothing about a plan
            logger.warning("the samples could not be written: %s", failure)

    return keep


def log_to(path: str) -> None:
    """Redirect all output of this process to ``path``."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_memory() -> None:
    """Make allocations fail in time, and this process the first that the kernel kills when memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    if available := _available_bytes():
        limit = int(available * MEMORY_SHARE)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _available_bytes() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def use_scratch() -> None:
    """Let compilers write temporary files where they are deleted: one that is killed leaves them.

    Python keeps its own folder until the compiler is imported: Inductor stores precompiled headers there for later
    workers.
    """
    tempfile.gettempdir()
    os.environ["TMPDIR"] = os.environ.pop(SCRATCH)


def import_early(backend: str) -> float:
    """Import what the first request needs, while the client opens its storage.

    Returns the seconds for importing the compiler, which count as compile time, as in any first torch.compile.
    """
    gc.disable()  # a sixth of the time goes into walks over modules, which live as long as the process
    import torch  # noqa: F401

    began = time.perf_counter()
    from sktune.backends import backend_info

    backend_info(backend).load()
    importing_s = time.perf_counter() - began
    import sktune.targets.loading
    import sktune.targets.tracing  # noqa: F401

    gc.freeze()
    gc.enable()
    return importing_s


def main() -> None:
    """Serve the client on the file descriptors in ``argv``."""
    end_with_parent()
    use_scratch()
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO)
    requests_in, answers_out = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (requests_in, answers_out):
        os.set_inheritable(descriptor, False)  # compilers that are started must not hold them open
    importing_s = import_early(sys.argv[3])
    tempfile.tempdir = os.environ["TMPDIR"]  # from here on Python's temporary files are deleted, too

    with os.fdopen(requests_in, encoding="utf-8") as requests, os.fdopen(answers_out, "w", encoding="utf-8") as answers:
        Session(answers, importing_s).serve(requests)
    # Compile pools and CUDA contexts may leave threads that would block a normal exit.
    os._exit(0)


if __name__ == "__main__":
    main()
