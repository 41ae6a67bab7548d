"""Builders shared by tests of several packages: layouts, outcomes, studies, and a way to run the command."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from math import exp
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from jsonschema import Draft202012Validator

from sktune.cli import main
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.outcome import FinalRow, Outcome, Reason, Speedup
from sktune.core.space import OptionRules, SpaceSpec, bind
from sktune.samplers import find_strategy
from sktune.study.result import SearchResult, result_of
from sktune.study.study import TuningStudy, folder_name, sqlite_url

E = TypeVar("E", bound=Exception)
TESTS = Path(__file__).parent
ROOT = TESTS.parent
OWN_MODEL = f"{ROOT / 'examples' / 'own_model.py'}:target"

PUBLISHED = ROOT / "docs" / "schema" / "events-v1.json"
CHILDREN = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
MADE_WITH = {
    "backend": "inductor", "device": "a CPU", "scale": "tiny", "dtype": "bfloat16", "batch": "4", "context": "32",
    "model": "llama-tiny 0123", "seed": "0", "torch": "2.13",
}  # fmt: skip


def decoder_layout(kinds: tuple[str, ...], children: tuple[str, ...] = CHILDREN, outside: bool = True) -> Layout:
    """Return the layout of a decoder with layers of ``kinds``."""
    before = (Unit("model.embed_tokens", "embed_tokens"),) if outside else ()
    after = (Unit("model.norm", "norm"), Unit("lm_head", "lm_head")) if outside else ()
    inside = tuple(
        Unit(f"model.layers.{index}.{child}", child, index) for index in range(len(kinds)) for child in children
    )
    layers = tuple(Layer(f"model.layers.{index}", kind) for index, kind in enumerate(kinds))
    return Layout((*before, *inside, *after), layers)


SPACE = bind(SpaceSpec(), decoder_layout(("dense", "moe")), {}, OptionRules({}))


def outcome(ratio: float | None) -> Outcome:
    """Return a trial's outcome with speedup ``ratio``; None for one that changes bits."""
    if ratio is None:
        return Outcome(Reason.MISMATCH, "bits")
    return Outcome(Reason.SLOWER if ratio < 1 else None, "", Speedup(10, 10 / ratio, ratio, (ratio, ratio), 40))


def study_of(runs: Path, name: str, ratios: list[float | None], **made_with: str) -> SearchResult:
    """Return a stored study of trials with these speedups."""
    folder = runs / folder_name(name)
    folder.mkdir()
    study = TuningStudy.open(name, sqlite_url(folder), create=True)
    study.remember(fingerprint=MADE_WITH | made_with, description="a model", seconds=12.5)
    for ratio in ratios:
        proposal = study.ask(SPACE, find_strategy("grid"), seed=0)
        study.tell(proposal, outcome(ratio), 10 / ratio if ratio else None)
    return result_of(study, folder)


def row(name: str, log_ratio: float = 0.0, verdict: str = "identical") -> FinalRow:
    """Return a row of the final comparison, as measured in one process."""
    bounds = (exp(log_ratio - 0.001), exp(log_ratio + 0.001))
    return FinalRow(name, Speedup(5.0, 5.0, exp(log_ratio), bounds, 100), verdict, verdict == "identical", "abc")


def install_toy(site: Path, source: str, entry_points: str) -> None:
    """Write a package ``toy`` of one module to ``site``, as if it were installed there."""
    metadata = site / "toy-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "toy.py").write_text(source)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def sktune_command(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``sktune`` in this process: a second less for each command than ``sktune_process``."""
    output, errors, exit_code = StringIO(), StringIO(), 0
    with (
        patch.object(sys, "argv", ["sktune", *arguments]), redirect_stdout(output), redirect_stderr(errors),
        chdir(folder or Path.cwd()), patch("sktune.cli.search.process_began_s", time.monotonic),
    ):  # fmt: skip
        try:
            main()
        except SystemExit as end:
            exit_code = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, exit_code, output.getvalue(), errors.getvalue())


def succeeded(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``sktune`` in this process; it must succeed."""
    done = sktune_command(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def refusal(*arguments: str, folder: Path | None = None) -> str:
    """Run ``sktune`` in this process; return its one line of error, with which it must end as on bad input."""
    done = sktune_command(*arguments, folder=folder)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


@contextmanager
def one_line_error(kind: type[E], match: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error whose message is one line."""
    with pytest.raises(kind, match=match) as failure:
        yield failure
    assert "\n" not in str(failure.value)


def sktune_process(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``sktune`` as a user would."""
    command = [sys.executable, "-m", "tests.command", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=600)


def published() -> dict[str, Any]:
    """Return the schema of all events."""
    schema: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return schema


def checked(lines: str) -> list[dict[str, Any]]:
    """Return the events in ``lines``, one per line; each must follow its schema."""
    events = [json.loads(line) for line in lines.splitlines()]
    check(events)
    return events


def check(events: Iterable[dict[str, Any]]) -> None:
    """Fail unless each event follows the schema of its kind."""
    schema = published()
    for event in events:
        assert event["event"] in schema["$defs"], f"{event['event']} has no schema"
        # Only the event's own schema: the message then names the key.
        event_schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{event['event']}"}
        problem = next(iter(Draft202012Validator(event_schema).iter_errors(event)), None)
        assert problem is None, f"{event['event']}: {problem.json_path if problem else ''} {problem}"
