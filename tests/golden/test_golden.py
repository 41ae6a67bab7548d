"""The output that users see, command by command; an intended change rewrites a golden file in the same commit."""

import difflib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest

from sktune.agents.mcp_server import make_server
from sktune.agents.permissions import Permissions
from sktune.cli.app import load
from sktune.core.language import LANGUAGES, Language
from sktune.core.outcome import Reason
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.reports.figures import FIGURES
from sktune.sim.constants import ATLAS_A3
from tests.analysis.test_analysis import analysis_of, fake_study
from tests.golden import normalised
from tests.projects import RANKS, TEMPLATE, ModelProject
from tests.releases import as_recorded
from tests.reports.page_studies import at_fixed_times, shown, study_in
from tests.source.test_source import ATTENTION

FILES = Path(__file__).parent / "files"
REWRITE = "pytest tests/golden --rewrite-golden"
COMMAND: Any = load()
ENVIRONMENT = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUTF8": "1"}
UNSET = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES")
"""Variables that would change how rich prints."""


class Golden:
    """Files with the expected output.

    Args:
        rewrite: whether to replace them with the current output.
    """

    def __init__(self, *, rewrite: bool) -> None:
        self._rewrite = rewrite

    def check(self, name: str, seen: Mapping[str, str]) -> None:
        """Compare the output, by file name, with all files of the folder ``name``; fail with a diff if it differs."""
        folder = FILES / name
        if self._rewrite:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file, text in seen.items():
                (folder / file).write_text(text, encoding="utf-8")
            return
        golden = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*")}
        diffs = [_diff(f"{name}/{file}", golden.get(file), seen.get(file)) for file in sorted(golden.keys() | seen)]
        if diff := "\n".join(filter(None, diffs)):
            pytest.fail(f"{diff}\nIf this change is intended: {REWRITE}, and commit its diff.", pytrace=False)


def _diff(file: str, golden: str | None, seen: str | None) -> str:
    """Return a unified diff; None is a missing file."""
    before, now = (
        "/dev/null" if text is None else f"{side}/{file}" for text, side in ((golden, "golden"), (seen, "now"))
    )
    old, new = (golden or "").splitlines(), (seen or "").splitlines()
    return "\n".join(difflib.unified_diff(old, new, before, now, lineterm=""))


@dataclass(frozen=True)
class Printed:
    """The output of a command, for programs or as a patch, and for people."""

    out: str
    err: str


def printed(*arguments: str) -> Printed:
    """Run a command in this process, which is faster if nothing is timed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        COMMAND.main([*arguments], prog_name="sktune", standalone_mode=False)
    return Printed(out.getvalue(), err.getvalue())


def printed_by_process(*arguments: str) -> Printed:
    """Run a command in a process, as a user would: its time budget begins with the process."""
    command = [sys.executable, "-m", "tests.command", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return Printed(done.stdout, done.stderr)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return the golden files, to compare with or to rewrite."""
    return Golden(rewrite=request.config.getoption("--rewrite-golden"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with a terminal of a fixed width and without colours."""
    monkeypatch.chdir(tmp_path)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_TERMINAL", "MAX_WIDTH"):  # typer has read its own from the environment
        monkeypatch.setattr(f"typer.rich_utils.{name}", None)
    # So that the command is found even if it is not installed.
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return tmp_path


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of a command and of all its subcommands."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)


@pytest.mark.skipif(not version("typer").startswith("0.29."), reason="the files show the help of typer 0.29")
def test_help_of_every_command(golden: Golden) -> None:
    """Each in its own file; a new command is added automatically."""
    helps = {"-".join(("sktune", *words)): printed(*words, "--help").out for words in commands(COMMAND)}
    assert {"sktune", "sktune-search", "sktune-agent-install"} <= helps.keys()
    golden.check("help", {f"{name}.txt": normalised.stripped(text) for name, text in helps.items()})


SEARCHES = {
    # Only starting points: draws from a posterior depend on how a processor rounds.
    "search-deepseek": ["--model", "deepseek-v3", "--seed", "3", "--trials", "7"],
    "search-llama-bottom-up": [
        *("--model", "llama", "--strategy", "bottom-up", "--constants", "constants.yaml", "--trials", "8")
    ],
}


def files_of_a_study(folder: Path) -> dict[str, str]:
    """Return the files that a search writes."""
    texts = {
        name: (folder / name).read_text(encoding="utf-8") for name in ("report.md", "best_plan.yaml", "trials.csv")
    }
    return {
        name: normalised.table(text) if name == "trials.csv" else normalised.text(text) for name, text in texts.items()
    }


@as_recorded
@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_and_its_files(name: str, golden: Golden, folder: Path) -> None:
    """Events, files, and `show`; on the device of the second search scopes hang until they are rescued."""
    constants = ATLAS_A3.read_text(encoding="utf-8")
    syncing = constants.replace("sync_all_types:\n  value: []", "sync_all_types:\n  value: [MatMulV2]")
    assert syncing != constants
    (folder / "constants.yaml").write_text(syncing, encoding="utf-8")
    search = printed_by_process("search", *SEARCHES[name], "--backend", "sim", "--json")
    study = json.loads(search.out.splitlines()[-1])["study"]
    why = printed("show", study, "--why", "--json")
    golden.check(
        name,
        {
            "events.txt": normalised.events(search.out),
            "progress.txt": normalised.text(search.err),
            "show.txt": normalised.text(printed("show", study).out),
            "show-why.txt": normalised.text(why.err),
            "show-why-event.txt": normalised.events(why.out),
            **files_of_a_study(Path("runs") / study),
        },
    )


@as_recorded
def test_inspect(golden: Golden) -> None:
    """For people and for programs."""
    seen = printed("inspect", "--model", "llama", "--backend", "sim", "--json")
    golden.check("inspect", {"inspect.txt": normalised.text(seen.err), "event.txt": normalised.events(seen.out)})


def files_of_an_analysis(folder: Path) -> dict[str, str]:
    """Return the files that the skill expects."""
    names = ("superkernel_optimization_report.md", "baseline_performance.json", "performance_comparison.json")
    return {name: normalised.text((folder / name).read_text(encoding="utf-8")) for name in names}


@as_recorded
@pytest.mark.slow
def test_an_analysis_in_both_languages(golden: Golden) -> None:
    """Events, terminal output, and the skill's files; the second analysis reads the study that the first one made."""
    seen: dict[str, str] = {}
    for language in LANGUAGES:
        options = ["--model", "deepseek-v3", "--backend", "sim", "--goal", "first", "--language", language]
        output = printed_by_process("analyze", *options, "--out", language, "--json")
        streams = {"events.txt": normalised.events(output.out), "progress.txt": normalised.text(output.err)}
        files = streams | files_of_an_analysis(Path(language))
        seen |= {f"{language}-{name}": text for name, text in files.items()}
    golden.check("analysis", seen)


MEASURED: dict[str, float | Reason] = {
    "attention only": 1.08,
    "MoE only": Reason.MISMATCH,
    "attention + MoE": 0.97,
    "each layer": 1.2,
    "all layers": 1.31,
    "whole step": Reason.TIMEOUT,
    "grid": Reason.CRASHED,
}
"""Outcomes of the trials of a study that is not simulated."""


@pytest.mark.usefixtures("all_final_processes")
def test_a_measured_study_has_intervals_bits_and_failures(
    golden: Golden, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are fixed; with its analysis for a model folder in both languages."""
    shutil.copytree(TEMPLATE.root, folder / "project")
    study = fake_study(Path("runs"), MEASURED)
    study.compare({3: 1.2, 4: 1.29})
    seen: dict[str, str] = {}
    for language in LANGUAGES:
        analysis_of(study, monkeypatch, language=language, folder=Path("project") / TEMPLATE.model, batch=2)
        seen |= {f"analysis-{language}-{name}": text for name, text in files_of_an_analysis(study.folder).items()}
    seen["show.txt"] = normalised.text(printed("show", "s").out)
    golden.check("measured", seen | files_of_a_study(study.folder))


@pytest.mark.parametrize(
    ("name", "project", "plan"),
    [("attention", TEMPLATE, ATTENTION), ("whole-step", RANKS, Plan((Scope("model.embed_tokens", "lm_head"),)))],
)
def test_the_diff_of_apply(name: str, project: ModelProject, plan: Plan, golden: Golden, folder: Path) -> None:
    """A scope in each layer, and one over the whole step."""
    shutil.copytree(project.root, folder / "project")
    (folder / "best_plan.yaml").write_text(write_plan(plan, {}, "npu", project.layers), encoding="utf-8")
    seen = printed("apply", "best_plan.yaml", "--to", str(Path("project") / project.model))
    golden.check(f"apply-{name}", {"change.diff": seen.out, "messages.txt": seen.err})


def test_the_tools_of_the_mcp_server(golden: Golden, folder: Path) -> None:
    """Names, descriptions and schemas: all that an agent knows about them."""
    server = make_server(folder / "runs", Permissions())
    tools = [tool.model_dump(mode="json", exclude_none=True) for tool in anyio.run(server.list_tools)]
    seen = {"instructions.txt": f"{server.instructions}\n"}
    seen |= {f"{tool['name']}.txt": f"{normalised.laid_out(tool)}\n" for tool in tools}
    golden.check("mcp", seen)


@pytest.mark.parametrize("language", LANGUAGES)
def test_pictures(golden: Golden, tmp_path: Path, language: Language) -> None:
    """Every section of ``report.html``, with the figures of a study that is always the same."""
    content = shown(at_fixed_times(study_in(tmp_path / "runs", trials=30)), language)
    figures = {key: figure for key, make in FIGURES.items() if (figure := make(content))}
    golden.check(
        f"pictures-{language}",
        {f"{key}.svg.html": f"{figure.title}\n{figure.lead}\n{_one_per_line(figure.body)}\n"
         for key, figure in figures.items()},
    )  # fmt: skip


def _one_per_line(markup: str) -> str:
    return str.replace(markup, "><", ">\n<")
