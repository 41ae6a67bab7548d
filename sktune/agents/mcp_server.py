"""The MCP server: sktune's commands as tools for agents, over standard input and output.

Every tool runs a command of ``sktune`` with ``--json`` in a process: it waits for short ones, and runs long ones as
jobs, which outlive the server. Tools return the commands' own events (docs/reference/events.md), and a model that
crashes or prints something harms neither the server nor its protocol.
"""

import inspect
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    ToolAnnotations,
)
from pydantic import Field, ValidationError

from sktune.agents import jobs
from sktune.agents.jobs import COMMAND, BackgroundJob, JobState
from sktune.agents.permissions import Permissions
from sktune.analysis.model_folder import model_or_recipe
from sktune.backends import backend_info
from sktune.backends.this_machine import package_version
from sktune.core.codec import encoded
from sktune.core.errors import BadInputError, SktuneError, StorageError, StudyError, nearest
from sktune.core.events.analysis import AnalysisFinished
from sktune.core.events.lines import parse_event
from sktune.core.events.search import ShapesFinished, StudyFinished
from sktune.core.events.studies import Incumbent
from sktune.core.files import real_path
from sktune.core.search_options import MODELS, OPTIONS, Opt, Taking, fields_of, taking
from sktune.reports.shapes import finished_event
from sktune.study.claims import is_held
from sktune.study.result import stored_result
from sktune.study.shapes import names_of_shapes, stored_shapes
from sktune.study.storage import DATABASE, RECORD
from sktune.study.study import folder_name, sqlite_url, study_names
from sktune.targets import TargetSpec
from sktune.tuning.request import Request
from sktune.tuning.shapes import alone

INSTRUCTIONS = """\
sktune finds which SuperKernel scopes make a model's decode step fastest while every output bit stays the same.
Call inspect, then start_search or analyze, then search_status repeatedly (with wait_s) until its state is no longer
running, then show_result, then apply_plan. Searches run in the background and survive this server: another client can
follow them by name, and start_search with the same arguments resumes one that was stopped."""

MAX_WAIT_S = 60.0
STARTED_S = 15.0
"""Seconds that a start waits for the first event, so that mistakes are reported immediately."""
ANSWER_S = 600.0
MAX_EVENTS = 200

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
RECORDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
"""Only a page in the folder of runs is written."""
STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
RUNS_CODE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
"""What a user's code does is not known."""
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Text = str | None
Name = Annotated[str, Field(description="Name of a study or an analysis, as start_search and list_studies return it")]


LAST_ANSWERS_S = 2.0
"""How long the end of the input waits for answers: a client that is gone must not wait for a search."""


class _Server(MCPServer[Any]):
    """Reports in one line what is wrong with a call, and how to fix it."""

    async def run_stdio_async(self) -> None:
        """Serve on standard input and output until its end; what was asked before it is answered, if that is quick.

        A line that is no message gets an error, as JSON-RPC 2.0 asks.
        """
        server = self._lowlevel_server
        send, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        answer, answered = anyio.create_memory_object_stream[SessionMessage](0)
        unanswered: set[RequestId] = set()

        async def sort_lines() -> None:
            async with send:
                async for message in lines:
                    if isinstance(message, Exception) or _is_request_without_number(message.message):
                        await answers.send(SessionMessage(_no_message(message)))
                        continue
                    if isinstance(message.message, JSONRPCRequest):
                        unanswered.add(message.message.id)
                    await send.send(message)
                with anyio.move_on_after(LAST_ANSWERS_S):
                    while unanswered:
                        await anyio.sleep(0.01)

        async def pass_on() -> None:
            async with answers:
                async for message in answered:
                    await answers.send(message)
                    if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                        unanswered.discard(message.message.id)

        async with stdio_server() as (lines, answers), anyio.create_task_group() as tasks, answer:
            tasks.start_soon(sort_lines)
            tasks.start_soon(pass_on)
            await server.run(messages, answer, server.create_initialization_options())

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; every expected failure becomes a ``ToolError`` with one line."""
        tools = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"there is no tool {name!r}{nearest(name, tools)}")
        if unknown := sorted(arguments.keys() - tools[name].keys()):
            raise ToolError(f"{name} has no argument {unknown[0]!r}{nearest(unknown[0], tools[name])}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as failure:
            if isinstance(failure.__cause__, ValidationError):
                raise ToolError(f"{name}: {_first(failure.__cause__)}") from failure
            if isinstance(failure.__cause__, SktuneError):
                raise ToolError(" ".join(str(failure.__cause__).split())) from failure
            raise


def _is_request_without_number(message: JSONRPCMessage) -> bool:
    """Return whether a message has a method that is asked for, but no number or text as its ``id``."""
    return isinstance(message, JSONRPCNotification) and not message.method.startswith("notifications/")


def _no_message(failure: object) -> JSONRPCError:
    """Return the answer to a line that cannot be read: it has no number of a request."""
    is_json = not isinstance(failure, ValidationError) or failure.errors()[0]["type"] != "json_invalid"
    code, what = (INVALID_REQUEST, "a message of JSON-RPC") if is_json else (PARSE_ERROR, "JSON")
    return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=f"the line is not {what}"))


def _subject(model: str | None, recipe: str | None, folder: str | None) -> str:
    """Return a short name for the model, recipe or folder."""
    return real_path(Path(recipe)).parent.name if recipe and not folder else Path(model or folder or "model").name


def _first(failure: ValidationError) -> str:
    """Return the first mistake in the arguments, in one line."""
    first = failure.errors()[0]
    argument = first["loc"][0] if first["loc"] else "the arguments"
    if first["type"] == "missing":
        return f"the argument {argument!r} is missing; give it"
    return f"{argument}: {first['msg'].lower()}, got {first['input']!r}"


def _of_search(*names: str) -> Callable[[Taking], Taking]:
    """Return a decorator that gives a tool options of a search in the place of its ``**given``.

    ``names`` are in the order of the schema; arguments of the tool itself are among them.
    """
    return taking([_argument(OPTIONS[name]) for name in names])


def _argument(option: Opt) -> inspect.Parameter:
    """Return an option of a search as an argument of a tool; None leaves it to the command."""
    kind: Any = Literal[option.choices] if option.choices else str if option.value_type is Path else option.value_type
    text = re.sub(r"--[a-z][a-z-]+", lambda flag: flag[0].removeprefix("--").replace("-", "_"), option.help)
    is_flag = option.kind is bool
    annotation: Any = Annotated[
        kind if is_flag else kind | None, Field(description=text, ge=option.at_least, gt=option.more_than_s)
    ]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=False if is_flag else None, annotation=annotation
    )


class Tools:
    """The tools, on one folder of runs.

    Args:
        runs: folder that holds the studies and jobs.
        allowed: what agents may execute and change.
    """

    def __init__(self, runs: Path, allowed: Permissions) -> None:
        self._runs, self._allowed = runs, allowed

    def _check(self, options: Mapping[str, Any]) -> TargetSpec:
        """Return what a search with these options is about, if this server may run its code there."""
        request = Request(**fields_of(options))
        self._allowed.check_address(request.address)
        specs = [each.target()[0] for each in alone(request)]
        for spec in specs:
            self._allowed.check_target(spec)
        self._allowed.check_strategy(request.strategy)
        return specs[0]

    @_of_search("backend", "device", "scale", "space", "weights", "dtype", "batch", "context", "trust")
    def inspect(self, model: Annotated[str, Field(description=MODELS)], **given: Any) -> dict[str, Any]:
        """Show a model's layer kinds and units, the search space's parameters and size, and the starting points."""
        options = {"model": model, **given}
        self._check(options)
        return _answer("inspect", *_options(options))

    @_of_search(*(name for name, option in OPTIONS.items() if option.for_agents))
    def start_search(self, **given: Any) -> dict[str, Any]:
        """Search for the best plan in the background; the same arguments resume the study.

        Follow it with search_status. More trials, or another time_budget, continue a study that has ended.
        """
        spec = self._check(given)
        ends_with = ShapesFinished.event if given.get("shapes") else StudyFinished.event
        return self._started("search", ends_with, given | {"study": given.get("study") or spec.study_name})

    @_of_search("recipe", "profile", "backend", "device", "scale", "trust")
    def analyze(
        self,
        model: Annotated[Text, Field(description="As in start_search; not needed if folder contains it")] = None,
        folder: Annotated[Text, Field(description="The model's, with its modeling_*.py and its YAML")] = None,
        yaml: Annotated[Text, Field(description="The YAML in it that switches scopes on")] = None,
        time_budget: Annotated[Text, Field(description=OPTIONS["time_budget"].help)] = "10m",
        goal: Annotated[Text, Field(description="first (attempt) or best (performance)")] = None,
        language: Annotated[Text, Field(description="Of the report: en or zh")] = None,
        study: Annotated[Text, Field(description="A name; made of the model by default")] = None,
        **given: Any,
    ) -> dict[str, Any]:
        """Go from a model to a recommendation with reasons, in the background and within the time budget.

        Follow it with search_status: its last event, analysis_finished, has the recommendation.
        """
        named = Path(given["recipe"]) if given.get("recipe") else None
        searched, its_recipe = model_or_recipe(model, named, Path(folder) if folder else None)
        self._check(given | {"model": searched, "recipe": its_recipe})
        study = study or f"analysis-{_subject(model, given.get('recipe'), folder)}"
        own = {"model": model, "dir": folder, "yaml": yaml, "time_budget": time_budget, "goal": goal}
        return self._started("analyze", AnalysisFinished.event, {**own, "language": language, "study": study, **given})

    def search_status(
        self,
        name: Name,
        since: Annotated[int, Field(ge=0, description="First event to return: `next` of the last answer")] = 0,
        wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="Seconds to wait for new events")] = 0.0,
    ) -> dict[str, Any]:
        """Return a search's or analysis's state, its events since number N, the best so far and the time left.

        With several workers also what each does, since when, why one was lost, and how many trials wait.
        """
        job = jobs.find_job(self._runs, name)
        if job is None and name not in self._names():
            raise BadInputError(f"there is no study and no analysis {name!r}{nearest(name, self._names())}")
        if job and wait_s:
            job.wait(since, wait_s)
        state = self._state(name, job, with_workers=True)  # before the events: one that has ended has all of them
        events, number = job.events(since) if job else ([], 0)
        latest = events[-MAX_EVENTS:]
        return state | {"events": latest, "next": number, "left_out": len(events) - len(latest)}

    def stop_search(self, name: Name) -> dict[str, Any]:
        """Stop a search after its running trial; a second call stops it immediately. start_search resumes it."""
        job = jobs.find_job(self._runs, name)
        if job is None:
            raise BadInputError(
                f"no search {name!r} was started here{nearest(name, self._names())}; stop one in a shell with Ctrl-C"
            )
        job.stop()
        return {"name": name, "state": str(job.state)}

    def list_studies(self) -> dict[str, Any]:
        """List all studies and analyses, with their states and results."""
        return {"studies": [self._state(name, jobs.find_job(self._runs, name)) for name in self._names()]}

    def show_result(
        self, study: Name, why: Annotated[bool, Field(description="Also return what it has learned")] = False
    ) -> dict[str, Any]:
        """Return what a study has found: the verdict, the best plan's file, failures by scope."""
        return _answer("show", f"--runs={self._runs}", *(["--why"] if why else []), "--", study)

    def apply_plan(
        self,
        folder: Annotated[str, Field(description="The model's, with its modeling_*.py and its YAML")],
        plan: Annotated[Text, Field(description="Path of a best_plan.yaml, from show_result; none with undo")] = None,
        yaml: Annotated[Text, Field(description="The YAML to switch scopes on in, if there are several")] = None,
        shape: Annotated[Text, Field(description="Of a plan for several shapes, take that of this one")] = None,
        write: Annotated[bool, Field(description="Change the files; by default only the diff is shown")] = False,
        undo: Annotated[bool, Field(description="Restore the files")] = False,
    ) -> dict[str, Any]:
        """Turn a plan into a change of a model's source and YAML, and show the diff."""
        if (write or undo) and not self._allowed.writes:
            raise BadInputError("this server only shows diffs; start it with --allow-write to change files")
        options = _options({"to": folder, "yaml": yaml, "shape": shape, "write": write, "undo": undo})
        return _answer("apply", *options, *(["--", plan] if plan else []))

    def profile(
        self,
        file: Annotated[str, Field(description="A kernel_details.csv, op_summary or chrome trace, or its folder")],
        candidate: Annotated[Text, Field(description="A profile with scopes, to compare with the first")] = None,
    ) -> dict[str, Any]:
        """Show where the time of a profiled decode step goes, and how much scopes can save."""
        return _answer("profile", f"--runs={self._runs}", "--", file, *([candidate] if candidate else []))

    def _started(self, command: str, ends_with: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name, backend = arguments["study"], arguments.get("backend")
        words = (command, *_options(arguments), f"--runs={self._runs}")
        is_timed = backend is None or not backend_info(backend).is_simulated
        job = jobs.start(self._runs, name, words, ends_with=ends_with, is_timed=is_timed)
        job.wait(job.begins_at, STARTED_S)
        reached, events, number = job.state_and_events(job.begins_at)
        if reached in (JobState.FAILED, JobState.DIED):
            message = events[-1].get("message") if events else None
            raise BadInputError(message or f"{name!r} died; see {job.log}, then start it again")
        return self._state(name, job) | {"events": events, "next": number}

    def _state(self, name: str, job: BackgroundJob | None, *, with_workers: bool = False) -> dict[str, Any]:
        """Return the current state of a study or an analysis."""
        runs_in_shell = is_held(self._database(name).parent / "lock")
        state: dict[str, Any] = {"name": name, "state": "running" if runs_in_shell else "idle"}
        is_of_shapes = (self._runs / folder_name(name) / RECORD).exists()
        if job:
            reached, events, _ = job.state_and_events(job.begins_at)
            left = [event["expected_left_s"] for event in events if "expected_left_s" in event]
            # A search for several shapes tells that of the present one alone.
            left_s = left[-1] if left and job.is_alive and not is_of_shapes else None
            state |= {"log": str(job.log), "expected_left_s": left_s}
            if job.is_alive or not runs_in_shell:
                state["state"] = str(reached)
                state |= {"message": events[-1]["message"]} if events and "message" in events[-1] else {}
        if self._database(name).exists() or is_of_shapes:
            try:
                if answer := stored_shapes(name, self._runs):
                    told = finished_event(answer).to_dict()
                    return state | {"result": {key: value for key, value in told.items() if key != "event"}}
                result = stored_result(name, self._runs)
            except (StudyError, StorageError) as failure:
                # A search that has just started may still be creating it.
                return state if job and job.is_alive else state | {"message": str(failure)}
            state |= {"result": result.summary(), "incumbent": encoded(result.incumbent(), Incumbent | None)}
            if with_workers and (workers := result.workers).all:
                state |= {"workers": [encoded(worker) for worker in workers.all]}
                state |= {"trials_running": workers.running, "trials_queued": workers.queued}
        return state

    def _database(self, study: str) -> Path:
        return self._runs / folder_name(study) / DATABASE

    def _names(self) -> list[str]:
        """Return the names of all studies and analyses."""
        names = {job.name for job in jobs.all_jobs(self._runs)}
        names |= set(names_of_shapes(self._runs))
        for database in self._runs.glob(f"*/{DATABASE}"):
            try:
                names.update(study_names(sqlite_url(database.parent)))
            except (StudyError, StorageError):
                names.add(database.parent.name)  # its state shows the error
        return sorted(names)


def _options(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as options of a command, in a form in which no value can be taken for another option."""
    options = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            options += [option] if value else []
        elif isinstance(value, list):
            options += [f"{option}={each}" for each in value]
        elif value is not None:
            options.append(f"{option}={value}")
    return options


def _answer(command: str, *arguments: str) -> dict[str, Any]:
    """Run a short command, and return its last event.

    Raises:
        BadInputError: it failed; with the command's own message.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own command, without a shell
            [*COMMAND, command, "--json", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=ANSWER_S,
            check=False,
        )  # fmt: skip
    except (OSError, ValueError) as failure:  # an argument with a null character, for instance
        raise BadInputError(f"sktune {command} cannot be run: {failure}; fix its arguments") from failure
    except subprocess.TimeoutExpired as failure:
        raise BadInputError(f"sktune {command} did not finish within {ANSWER_S:g} s; run it in a shell") from failure
    event = parse_event(done.stdout.rstrip("\n").rpartition("\n")[2])
    if event is None:
        raise BadInputError(f"sktune {command} died; the end of its output: {done.stderr[-500:]}")
    if done.returncode:
        raise BadInputError(event["message"])
    return event


def make_server(runs: Path, allowed: Permissions) -> MCPServer[Any]:
    """Return the server for the studies in ``runs``."""
    server = _Server("sktune", instructions=INSTRUCTIONS, version=package_version("sktune"), log_level="WARNING")
    tools = Tools(real_path(runs), allowed)
    kinds = (
        (RUNS_CODE if allowed.roots else READS, (tools.inspect,)),
        (READS, (tools.search_status, tools.list_studies)),
        (RECORDS, (tools.show_result, tools.profile)),
        (RUNS_CODE if allowed.roots else STARTS, (tools.start_search, tools.analyze)),
        (STARTS, (tools.stop_search,)),
        (WRITES if allowed.writes else READS, (tools.apply_plan,)),
    )
    for annotations, methods in kinds:
        for tool in methods:
            server.add_tool(tool, description=inspect.getdoc(tool), annotations=annotations)
    return server
