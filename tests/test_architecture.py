"""The structure that the design fixes: imports go one way, public names are listed, nothing prints."""

import ast
import subprocess
import sys
from pathlib import Path

import sktune

PACKAGE = Path(sktune.__file__).parent

# A module imports only from those above it in this list.
ORDER = [
    "errors", "documents", "time_budget", "protobuf_text", "ge_graph", "plan", "superkernel_options",
    "superkernel_name", "plog", "fusion", "delivery",
    "plan_file", "source", "source.flag", "source.changes", "source.classes", "source.flow", "source.placing",
    "source.rewriting", "source.applying",
    "layout", "space_size", "space", "segments", "partitioning", "segment_model", "feasibility",
    "bits", "outcome", "scope_times", "machine", "sequential", "noise_floor", "latency", "samples", "devices",
    "presets", "contents", "environment", "recipes", "recipes.document", "recipes.walk",
    "targets", "targets.base", "targets.state", "targets.causal_lm", "targets.loading",
    "marks", "tracing",
    "sim", "sim.constants", "sim.operators", "sim.ge", "sim.trace", "sim.deployment", "sim.superkernel", "sim.model",
    "sim.calibration",
    "profiling", "profiling.kernel_roles", "profiling.event_stream", "profiling.kernel_table", "profiling.csv_files",
    "profiling.trace_files", "profiling.reading", "profiling.repetition", "profiling.structure", "profiling.analysis",
    "profiling.comparison", "profiling.tables", "profiling.timeline", "profiling.report",
    "backends", "backends.options", "backends.base", "tensor_bits", "verify", "backends.regions", "backends.variations",
    "backends.region_check", "backends.pieces",
    "backends.numerics", "backends.exactness", "backends.building", "backends.cpp_wrapper", "backends.cuda_graph",
    "backends.artifacts", "backends.generated_code", "backends.inductor",
    "backends.npu_profile", "backends.npu", "backends.sim",
    "verdict", "step_check", "verifier", "trial", "fingerprint", "worker", "supervisor", "final",
    "recipes.latency_lines", "recipes.reports", "recipes.step_times", "recipes.walk", "recipes.tensors", "recipes.rank",
    "launch", "recipes.site.sitecustomize", "recipes.agreement", "recipes.running", "recipes.supervising",
    "recipes.scouting",
    "learned", "samplers", "samplers.procedure", "samplers.grid", "samplers.guide", "samplers.distinct",
    "samplers.probing", "samplers.partition", "claims", "storage", "study", "result", "why", "why_view",
    "report", "comparing", "profile_prior", "request", "requested_space", "stopping", "finals", "search_loop", "proxy",
    "recheck", "inspection", "calibrating", "doctor",
    "analysis", "analysis.text", "analysis.decision", "analysis.options", "analysis.place", "analysis.recommendation",
    "analysis.evidence", "analysis.performance", "analysis.report", "analysis.analyze", "",
    "agent", "jobs", "mcp_server", "skill", "view", "profile_view", "analysis_view",
    "cli.options", "cli.app", "cli.search", "cli.studies", "cli.plans",
    "cli.models", "cli.agents", "cli.main", "cli", "cli.__main__",
]  # fmt: skip


def module_name(path: Path) -> str:
    """Return the dotted name below ``sktune``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_imports_go_up_only() -> None:
    """Every module stands in the list, and imports nothing below itself."""
    for path in PACKAGE.rglob("*.py"):
        name = module_name(path)
        assert name in ORDER, f"{name} is not in the list"
        for node in ast.walk(ast.parse(path.read_text())):
            imported = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sktune":
                base = node.module.removeprefix("sktune").removeprefix(".")
                for alias in node.names:
                    inner = f"{base}.{alias.name}".removeprefix(".")
                    imported.append(inner if inner in ORDER else base)
            for target in imported:
                assert ORDER.index(target) < ORDER.index(name), f"sktune.{name} imports sktune.{target}"


def test_only_the_command_and_the_agent_print() -> None:
    """The library logs."""
    for path in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not prints or module_name(path) in ("cli.app", "cli.plans", "agent")


def test_the_public_names_exist() -> None:
    """What is listed can be had."""
    for name in sktune.__all__:
        assert getattr(sktune, name) is not None


def test_the_command_starts_without_torch() -> None:
    """Help, errors and finished studies answer at once."""
    code = "import sys, sktune.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_starts_without_optuna() -> None:
    """A worker proposes nothing; each start of one would pay for the import."""
    code = "import sys, sktune.worker; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_modules_stay_small() -> None:
    """No module over 500 lines."""
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path.name
