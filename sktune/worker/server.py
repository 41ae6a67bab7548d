"""The worker: an isolated process that loads the model once and runs trials, until one of them kills it.

Started by ``runner`` as ``python -m sktune.worker.server IN OUT BACKEND``; requests and answers are JSON lines
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
from pathlib import Path
from typing import Any, TextIO

from sktune.core.codec import decoded, encoded
from sktune.core.errors import (
    BackendError,
    MachineError,
    OutOfMemoryDuringTrialError,
    SktuneError,
    TargetError,
    described,
    first_line,
    machine_failure,
)
from sktune.core.outcome import Outcome, Reason
from sktune.measure.latency import Measurement
from sktune.measure.machine import available_memory
from sktune.worker.jobs import (
    SCRATCH,
    CheckMachine,
    Compare,
    Deliver,
    Judge,
    LoadModel,
    Opened,
    Progress,
    SampleNoiseFloor,
    Shortlist,
    Verify,
)

logger = logging.getLogger(__name__)

STARTED_S = time.perf_counter()
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MEMORY_SHARE = 0.9
"""Share of the memory available at the start that a worker may use before its allocations fail."""


JOBS: Mapping[str, Any] = {
    job.__name__: job for job in (LoadModel, CheckMachine, Judge, SampleNoiseFloor, Shortlist, Verify, Compare, Deliver)
}


class Session(Progress):
    """The state of one worker: the evaluator, which holds target and backend. Answers are lines to the client."""

    def __init__(self, answers: TextIO, importing_s: float) -> None:
        self._answers, self._importing_s = answers, importing_s
        self._evaluator: Any = None
        self._folder, self._log = Path(), Path()

    def answer(self, **message: Any) -> None:
        """Send one line to the client."""
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def heartbeat(self) -> None:
        """See ``Progress``."""
        self.answer(alive=True)

    def scope(self, label: str) -> None:
        """See ``Progress``."""
        self.answer(scope=label)

    def scored(self, outcome: Outcome) -> None:
        """See ``Progress``."""
        self.answer(scored=encoded(outcome))

    def measured(self, names: Sequence[str], measurement: Measurement) -> None:
        """Write the samples of a measurement into the job's file."""
        from sktune.measure import samples  # where nothing is measured, there are none

        try:
            samples.write(self._folder / samples.FOLDER / f"{self._log.stem}.npz", names, measurement)
        except OSError as failure:  # a full disk says nothing about a plan
            logger.warning("the samples could not be written: %s", failure)

    def serve(self, requests: TextIO) -> None:
        """Do jobs until the client closes its pipe."""
        for line in requests:
            request = json.loads(line)
            try:
                log_to(request["log"])
                self._folder, self._log = Path(request["folder"]), Path(request["log"])
                kind = JOBS[request["job"]]
                self.answer(
                    answer=encoded(self._done(decoded(kind, request["values"]), request["left_s"]), kind.answer)
                )
            except OutOfMemoryDuringTrialError as failure:
                traceback.print_exc()
                crashed = Outcome(Reason.CRASHED, f"out of memory: {failure}", blamed=failure.blamed)
                self.answer(answer=encoded(crashed))
                sys.exit(1)
            except SktuneError as failure:
                self.answer(error=type(failure).__name__, message=str(failure))
                traceback.print_exc()  # last: the disk may be full
            except Exception as failure:  # noqa: BLE001 - the client must get every error
                error = MachineError if machine_failure(failure) else BackendError
                self.answer(error=error.__name__, message=f"{described(failure)}; see {request['log']}")
                traceback.print_exc()

    def _done(self, job: Any, left_s: float | None) -> Any:
        """Do a job, and return its answer."""
        if isinstance(job, LoadModel):
            return self._loaded(job)
        if left_s is not None:
            self._evaluator.ends_s = time.monotonic() + left_s
        return job.run(self._evaluator, lambda stage: self.answer(stage=stage))

    def _loaded(self, job: LoadModel) -> Opened:
        """Load the model, unless it does not fit into memory."""
        from sktune.measure.devices import ran_out_of_memory

        limit_memory()  # only now: while this process was started, another worker may have held a model
        try:
            return self._load(job)
        except Exception as failure:
            if not ran_out_of_memory(failure):
                raise
            reason = first_line(failure.__cause__ or failure)
            fix = "choose a smaller --scale, --batch or --context"
            raise TargetError(f"the model does not fit into memory: {reason}; {fix}") from failure

    def _load(self, job: LoadModel) -> Opened:
        import torch

        from sktune.backends import backend_info
        from sktune.core.contents import imported_modules
        from sktune.measure.devices import import_torch_npu, make_deterministic
        from sktune.targets import TargetSpec
        from sktune.targets.base import decode_inputs
        from sktune.targets.loading import load
        from sktune.targets.tracing import trace
        from sktune.worker.evaluator import PlanEvaluator

        torch.set_grad_enabled(False)
        spec = TargetSpec.from_dict(job.spec)
        info = backend_info(spec.backend)
        if spec.device == "npu":
            import_torch_npu()
        make_deterministic(spec.device)
        target = load(spec, takes_torchair=info.takes_torchair(spec.device))
        layout, calls = trace(target, job.space)
        caches = [
            Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name in os.environ
        ]
        modules = imported_modules(spec.package, spec.home, tuple(caches))
        loaded = time.perf_counter()
        backend = info.load()(target, layout, decode_inputs(target, 0, 1)[0], **info.settings_of(spec))
        if info.is_simulated:
            layout = layout.with_time_shares(backend.time_shares())  # on the meta device nothing takes time
        facts: dict[str, Any] = {} if job.delivered is None else {"not_delivered": info.install(*job.delivered)}
        if job.is_first:
            layout, facts["calls"] = backend.with_operators(layout), calls
        self._evaluator = PlanEvaluator(target, backend, self)
        return Opened(
            layout,
            "; ".join(filter(None, (target.description or spec.name, backend.notes))),
            seconds={
                "load": loaded - STARTED_S - self._importing_s,
                "baseline": time.perf_counter() - loaded + self._importing_s,
            },
            facts={"model_difference": self._evaluator.model_difference, **facts},
            modules=modules,
            baseline_digest=self._evaluator.baseline_digest if job.is_first else "",
        )


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
    limit = int(available_memory() * MEMORY_SHARE)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


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
