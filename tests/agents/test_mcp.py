"""The MCP server, through the SDK's own client over stdio: a complete session, and wrong calls."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from sktune.agents import jobs
from sktune.agents.jobs import JobState
from sktune.agents.mcp_server import Tools
from sktune.agents.permissions import Permissions
from sktune.core.errors import BadInputError
from tests import profiles
from tests.builders import check
from tests.projects import TEMPLATE, as_model, long_gaps
from tests.reports.page_studies import on_three_dies, study_in

ALIVE = ("running", "stopping")
NAME = "a name/of ours"


def through_anyio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        anyio.run(lambda: test(**fixtures))

    return run


@asynccontextmanager
async def server(runs: Path, *options: str) -> AsyncIterator[Client]:
    """Start ``sktune mcp`` as a client does, and connect to it."""
    command = ["-m", "tests.command", "mcp", "--runs", str(runs), *options]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(parameters) as client:
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool's answer."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    content: dict[str, Any] | None = answer.structured_content
    assert content is not None
    return content


async def refused(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """Return the message of a call that must fail."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.structured_content
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text


async def followed(client: Client, name: str, since: int, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Follow a search until a status satisfies ``until``; every event must match its schema."""
    deadline_s = time.monotonic() + 120
    events = []
    while time.monotonic() < deadline_s:
        status = await called(client, "search_status", name=name, since=since, wait_s=10)
        check(status["events"])
        events += status["events"]
        since = status["next"]
        if until(status):
            return status | {"events": events}
    raise AssertionError(f"{name} is {status['state']} for too long")


def is_over(status: dict[str, Any]) -> bool:
    """Whether the job has ended."""
    return status["state"] not in ALIVE


@pytest.mark.slow
@through_anyio
async def test_a_complete_session(tmp_path: Path) -> None:
    """Inspect, start, follow, stop, resume and apply; a second server continues where the first one ended."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    model, space = as_model(tmp_path / "project", tmp_path)
    folder = tmp_path / "project" / TEMPLATE.model
    constants = str(long_gaps(tmp_path))
    search = {"model": model, "space": str(space), "backend": "sim", "constants": constants, "study": NAME}
    allowed = ("--allow-run", str(tmp_path))
    async with server(tmp_path / "runs", *allowed) as client:
        inspected = await called(client, "inspect", model=model, space=str(space), backend="sim")
        check([inspected])
        assert "self_attn" in str(inspected["kinds"])
        started = await called(client, "start_search", **search, trials=100_000)
        assert started["state"] == "running"
        assert "is already running" in await refused(client, "start_search", search)
    async with server(tmp_path / "runs", *allowed) as client:  # the first server is gone, the search is not
        running = await followed(client, NAME, 0, lambda status: bool(status.get("incumbent")))
        assert running["state"] == "running"
        assert (await called(client, "stop_search", name=NAME))["state"] in ("stopping", "stopped")
        stopped = await followed(client, NAME, running["next"], is_over)
        assert stopped["state"] == "stopped"
        assert "run the same command to continue" in stopped["message"]
        done = stopped["result"]["trials"]
        await called(client, "start_search", **search, trials=done + 2)
        finished = await followed(client, NAME, stopped["next"], is_over)
        assert finished["state"] == "finished"
        trials = [event["trial"] for event in finished["events"] if event["event"] == "trial_finished"]
        assert trials == [done, done + 1]
        assert finished["result"]["trials"] == done + 2
        assert [each["name"] for each in (await called(client, "list_studies"))["studies"]] == [NAME]
        shown = await called(client, "show_result", study=NAME)
        check([shown])
        assert shown["simulated"] is True
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        applied = await called(client, "apply_plan", folder=str(folder), plan=shown["plan"])
        assert "superkernel_scope" in applied["diff"]
        of_shape = {"folder": str(folder), "plan": shown["plan"], "shape": "batch=8"}
        assert "has no plan for the shape 'batch=8'" in await refused(client, "apply_plan", of_shape)
        write = {"folder": str(folder), "plan": shown["plan"], "write": True}
        assert "--allow-write" in await refused(client, "apply_plan", write)
        assert {path: path.read_bytes() for path in before} == before
    async with server(tmp_path / "runs", "--allow-write") as client:
        assert (await called(client, "apply_plan", **write))["written"] is True
        assert {path: path.read_bytes() for path in before} != before
        await called(client, "apply_plan", folder=str(folder), undo=True)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert list((tmp_path / "runs").glob("a-name-of-ours-*")) and not (tmp_path / "runs" / "a name").exists()


@pytest.mark.slow
@through_anyio
async def test_an_analysis_is_followed_like_a_search(tmp_path: Path) -> None:
    """By the name of its study; its last event has the recommendation."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    model, _ = as_model(tmp_path / "project", tmp_path)
    async with server(tmp_path / "runs", "--allow-run", str(tmp_path)) as client:
        arguments = {
            "model": model,
            "folder": str(tmp_path / "project" / TEMPLATE.model),
            "goal": "first",
            "backend": "sim",
        }
        started = await called(client, "analyze", **arguments, study="ours", time_budget="60s")
        assert started["name"] == "ours"
        over = await followed(client, "ours", 0, is_over)
        assert over["state"] == "finished"
        assert over["events"][-1]["event"] == "analysis_finished"
        assert over["result"]["trials"] == sum(event["event"] == "trial_finished" for event in over["events"])


@pytest.mark.slow
@through_anyio
async def test_a_wrong_call_gets_one_line_with_the_fix_and_the_server_keeps_running(tmp_path: Path) -> None:
    """No argument of a call becomes an option, a path or a shell command."""
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("start_serch", {}, "did you mean 'start_search'"),
        ("inspect", {}, "the argument 'model' is missing"),
        ("start_search", {}, "give --model, or --recipe"),
        ("start_search", {"model": "llama", "recipe": "recipe.yaml"}, "give --model, or --recipe"),
        ("start_search", {"recipe": "nowhere.yaml"}, "nowhere.yaml"),
        ("start_search", {"model": "lama"}, "did you mean 'llama'"),
        ("start_search", {"model": "llama", "trails": 3}, "did you mean 'trials'"),
        ("start_search", {"model": "llama", "trials": 0}, "greater than or equal to 1"),
        ("start_search", {"model": "llama", "trials": "many"}, "valid integer"),
        ("start_search", {"model": "llama", "backend": "gpu"}, "--backend must be"),
        ("start_search", {"model": "llama", "workers": 0}, "greater than or equal to 1"),
        ("start_search", {"model": "llama", "engine": "dask"}, "'local' or 'ray'"),
        ("start_search", {"model": "llama", "address": "a:1"}, "add --engine ray"),
        ("start_search", {"model": "llama", "engine": "ray", "address": "a:1"}, "--allow-cluster a:1"),
        ("start_search", {"recipe": "recipe.yaml", "workers": 2}, "leave out --workers"),
        ("start_search", {"model": "llama", "backend": "sim", "strategy": "tpee"}, "did you mean 'tpe'"),
        ("start_search", {"model": "llama", "backend": "sim", "study": "a\0b"}, "cannot be started"),
        ("search_status", {"name": "nothing"}, "no study and no analysis 'nothing'"),
        ("search_status", {"name": "nothing", "since": -1}, "greater than or equal to 0"),
        ("stop_search", {"name": "../../etc"}, "no search '../../etc' was started here"),
        ("show_result", {"study": "--help"}, "there is no study"),
        ("apply_plan", {"folder": "; rm -rf /", "plan": "$(false)"}, "cannot be read"),
        ("profile", {"file": "--version"}, "--version"),
    ]
    async with server(tmp_path / "runs") as client:
        for tool, arguments, message in calls:
            text = await refused(client, tool, arguments)
            assert message in text, text
            assert len(text.splitlines()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["runs"]
        profile = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek()))
        check([await called(client, "profile", file=str(profile))])


def test_the_status_says_what_the_workers_do(tmp_path: Path) -> None:
    """Which trial each runs since when, how many wait, and why one is not used any more."""
    with on_three_dies(tmp_path):
        status = Tools(tmp_path, Permissions()).search_status("shared")
    running, free, quarantined = status["workers"]
    assert (running["worker"], running["state"], running["trial"], running["attempt"]) == ("npu 0", "running", 3, 2)
    assert datetime.fromisoformat(running["since"])
    assert "trial" not in free
    assert quarantined["mishaps"][0]["why"] == "slow"
    assert (status["trials_running"], status["trials_queued"]) == (1, 1)
    study_in(tmp_path, trials=1)
    assert "workers" not in Tools(tmp_path, Permissions()).search_status("study")


def program(*lines: str) -> tuple[str, ...]:
    """Return a command that is run instead of sktune's."""
    return (sys.executable, "-c", "\n".join(("import json, signal, sys, time", *lines)))


PRINTS = 'print(json.dumps({"event": "trial_started"}), flush=True)'


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ((PRINTS, 'print(json.dumps({"event": "study_finished"}))'), JobState.FINISHED),
        ((PRINTS, 'print(json.dumps({"event": "error", "message": "no", "exit_code": 2}))'), JobState.FAILED),
        ((PRINTS, 'print(json.dumps({"event": "stopped", "message": "later", "exit_code": 1}))'), JobState.STOPPED),
        ((PRINTS, 'print("{", end="", flush=True)', "signal.raise_signal(signal.SIGKILL)"), JobState.DIED),
        (("print('no event')",), JobState.DIED),
    ],
)
def test_a_job_reports_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], state: JobState
) -> None:
    """From its files alone; the next run appends its lines, and has its own end."""
    monkeypatch.setattr(jobs, "COMMAND", program(*lines))
    started = jobs.start(tmp_path, "own", (), ends_with="study_finished", is_timed=True)
    started.wait(10**6, 10)
    job = jobs.find_job(tmp_path, "own")
    assert job is not None and job.state is state
    printed = len(job.events()[0])
    monkeypatch.setattr(jobs, "COMMAND", program(PRINTS))
    again = jobs.start(tmp_path, "own", (), ends_with="study_finished", is_timed=True)
    again.wait(10**6, 10)
    assert again.state is JobState.DIED
    assert len(again.events()[0]) == printed + 1


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_an_end_is_told_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """Also if the job ends while its files are read: the state is then the one before, or all of it is there."""
    ends = tmp_path / "ends"
    says = 'print(json.dumps({"event": "stopped", "message": "later", "exit_code": 1}))'
    waits = (PRINTS, "from pathlib import Path", f"while not Path({str(ends)!r}).exists(): time.sleep(0.01)", says)
    monkeypatch.setattr(jobs, "COMMAND", program(*waits))
    job = jobs.start(tmp_path, "own", (), ends_with="study_finished", is_timed=True)
    job.wait(0, 10)
    read, left = jobs.BackgroundJob.events, iter(range(reads, 0, -1))

    def read_and_end(job: jobs.BackgroundJob, since: int = 0) -> tuple[list[dict[str, Any]], int]:
        events = read(job, since)
        if next(left, 0) == 1:
            ends.touch()
            job.wait(10**6, 10)
        return events

    monkeypatch.setattr(jobs.BackgroundJob, "events", read_and_end)
    tools = Tools(tmp_path, Permissions())
    for status in (tools.search_status("own"), tools.search_status("own")):
        told = (status.get("message"), status["events"][-1]["event"])
        assert status["state"] == "running" or told == ("later", "stopped")
    assert status["state"] == "stopped"


def test_one_job_at_a_time_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would disturb each other; a simulated one may run beside them. A job that is stopping can be killed."""
    waits = ("signal.signal(signal.SIGINT, lambda *_: print('{}', flush=True))", PRINTS, "time.sleep(60)")
    monkeypatch.setattr(jobs, "COMMAND", program(*waits, "time.sleep(60)"))
    job = jobs.start(tmp_path, "first", (), ends_with="study_finished", is_timed=True)
    job.wait(0, 10)
    try:
        assert job.state is JobState.RUNNING
        with pytest.raises(BadInputError, match="'first' is running"):
            jobs.start(tmp_path, "second", (), ends_with="study_finished", is_timed=True)
        with pytest.raises(BadInputError, match="is already running"):
            jobs.start(tmp_path, "first", (), ends_with="study_finished", is_timed=False)
        other = jobs.start(tmp_path, "simulated", (), ends_with="study_finished", is_timed=False)
        other.wait(0, 10)
        os.kill(int((other.folder / "lock").read_text()), signal.SIGKILL)
        other.wait(10**6, 10)
        assert other.state is JobState.DIED
        job.stop()
        assert str(job.state) == "stopping"
    finally:
        os.kill(int((job.folder / "lock").read_text()), signal.SIGKILL)
    job.wait(10**6, 10)
    assert str(job.state) == "stopped"
    with pytest.raises(BadInputError, match="nothing to stop"):
        job.stop()


def test_a_line_that_is_no_message_gets_an_error(tmp_path: Path) -> None:
    """With JSON-RPC's codes, and the server goes on."""
    hello = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    lines = ["{not json", "[1, 2]", '{"jsonrpc": "2.0", "id": [], "method": 3}', "\xff"]
    identities: list[Any] = [[1], {}, True, 3.5, None, 7]
    lines += [json.dumps(hello | {"id": identity}) for identity in identities]
    command = [sys.executable, "-m", "tests.command", "mcp", "--runs", str(tmp_path)]
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [answer["error"]["code"] for answer in answers if answer["id"] is None]
    assert errors == [-32700, -32600, -32600, -32700, *[-32600] * 5]
    assert [answer for answer in answers if answer["id"] == 7]
