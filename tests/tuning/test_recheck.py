"""What was verified is what runs: a plan comes with its compiled code, and can be checked again."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sktune
from sktune.cli import app
from sktune.core.errors import PlanError
from sktune.core.plan import Plan
from sktune.core.plan_file import write_plan
from sktune.targets import RecipeSpec
from tests import warm
from tests.builders import TESTS, checked, refusal

MODEL = TESTS / "models" / "pointwise.py"
CONSTANT, OTHER = 1.2345678, 1.25

pytestmark = pytest.mark.slow

APPLY = """
import sys, logging, torch, sktune
logging.basicConfig(level=logging.WARNING)
from pointwise import target
own = target()
inputs = own.prefill(0, 1)[0]
sktune.apply(own.module, sys.argv[1], strict=sys.argv[2] == "strict")
decode_step = (lambda x: x * 2) if "no unit" in sys.argv else own.decode_step
backend = sys.argv[3] if sys.argv[3:] and sys.argv[3] != "no unit" else "sktune"
step = own.decode_step
if backend != "uncompiled":
    step = torch.compile(decode_step, backend=backend, fullgraph=True, dynamic=False)
torch.set_grad_enabled(False)
print(step(*inputs).double().sum().item().hex())
"""


@dataclass(frozen=True)
class Found:
    """A search's outcome in a folder that may be copied, beside the model that it was made for."""

    folder: Path

    @property
    def plan(self) -> Path:
        """The plan file."""
        return self.folder / "study" / "best_plan.yaml"

    @property
    def artifacts(self) -> Path:
        """The compiled code."""
        return self.folder / "study" / "best_plan.artifacts"

    def document(self) -> dict[str, Any]:
        """Return what the plan file holds."""
        found: dict[str, Any] = yaml.safe_load(self.plan.read_text())
        return found

    def rewrite(self, document: dict[str, Any]) -> None:
        """Put another document into the plan file."""
        self.plan.write_text(yaml.safe_dump(document, sort_keys=False))

    def recheck(self) -> tuple[int, dict[str, Any], str]:
        """Return exit code, event and everything for people."""
        model = f"{self.folder / MODEL.name}:target"
        words = ["recheck", str(self.plan), "--model", model, "--runs", str(self.folder), "--json"]
        done = CliRunner().invoke(app, [*words, "--verify-steps", "200"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        (event,) = checked(done.stdout)
        return done.exit_code, event, done.stderr

    def apply(self, cache: Path, *how: str) -> subprocess.CompletedProcess[str]:
        """Apply the plan in a fresh process; ``how``: strict or lenient, and what the program does wrong."""
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
        return subprocess.run(
            [warm.python_in(self.folder / "bin"), "-c", APPLY, str(self.plan), *how],
            cwd=self.folder, env={name: os.environ[name] for name in ("PATH", warm.ADDRESS)} | caches,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Search once; tests work on copies."""
    folder = tmp_path_factory.mktemp("found")
    shutil.copy(MODEL, folder)
    result = sktune.search(f"{folder / MODEL.name}:target", trials=2, study="study", runs=folder, verify_steps=200)
    assert result.winner is not None
    return folder


@pytest.fixture
def found(searched: Path, tmp_path: Path) -> Found:
    """Return a copy of what was found."""
    shutil.copytree(searched / "study", tmp_path / "study", ignore=shutil.ignore_patterns("*.db", "*.sqlite3"))
    shutil.copy(MODEL, tmp_path)
    return Found(tmp_path)


def test_a_plan_comes_with_its_code(found: Found) -> None:
    """The file lists the files beside it, and names the same code as its evidence."""
    entry = found.document()["artifacts"]
    assert entry["files"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found.artifacts.iterdir())
    }
    assert entry["code"].keys() == {scope["label"] for scope in found.document()["plan"]["scopes"]}
    assert "best_plan.artifacts" in (found.plan.parent / "report.md").read_text()


def test_another_process_runs_the_same_code_without_compiling(found: Found, tmp_path: Path) -> None:
    """On an empty cache: strict finds nothing to refuse, and no kernel is built, only Inductor's tests of the CPU."""
    done = found.apply(tmp_path / "cache", "strict")
    assert done.returncode == 0, done.stderr
    assert "verified" not in done.stderr
    assert not list((tmp_path / "cache").rglob("*.main.so"))


def test_code_of_another_machine_is_compiled_anew(found: Found, compile_cache: Path) -> None:
    """And said to be; strict refuses in one line. Inductor's own cache, which the search has filled, may be used."""
    document = found.document()
    document["artifacts"]["machine"]["torch"] = "1.0"
    found.rewrite(document)
    done = found.apply(compile_cache, "lenient")
    assert done.returncode == 0, done.stderr
    assert "instead of '1.0'" in done.stderr
    refused = found.apply(compile_cache, "strict")
    assert refused.returncode != 0
    assert "instead of '1.0'" in refused.stderr


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("inductor", "compiled by another backend"), ("aot_eager", "compiled by another backend"),
        ("uncompiled", "runs uncompiled"), ("no unit", "does not contain scope"),
    ],
)  # fmt: skip
def test_strict_says_so_if_a_scope_misses_its_verified_code(
    found: Found, compile_cache: Path, mistake: str, reason: str
) -> None:
    """At the latest when the first step has run; without strict, the program runs as it is."""
    refused = found.apply(compile_cache, "strict", mistake)
    assert refused.returncode != 0
    assert reason in refused.stderr
    if mistake != "inductor":  # Inductor itself fails on operators without results
        assert found.apply(compile_cache, "lenient", mistake).returncode == 0


@pytest.mark.parametrize("change", ["relabelled", "new", "removed"])
def test_strict_takes_no_scope_without_its_code(found: Found, tmp_path: Path, change: str) -> None:
    """A file whose scopes are not those of its artifacts is refused before anything is compiled."""
    document = found.document()
    scopes = document["plan"]["scopes"]
    if change == "relabelled":
        scopes[0]["label"] = "mine"
    elif change == "new":
        end = scopes[0]["last"]
        scopes[0]["last"] = scopes[0]["first"]
        scopes.append({"first": end, "last": end, "label": "more", "options": {"matmul": "autotune"}})
    else:
        document["artifacts"]["code"]["gone"] = "0" * 64
    found.rewrite(document)
    refused = found.apply(tmp_path / "cache", "strict")
    assert refused.returncode != 0
    assert "is not in both the plan and its verified code" in refused.stderr


def test_a_plan_that_holds_is_kept(found: Found) -> None:
    """Code, bits and speed."""
    code, event, messages = found.recheck()
    assert (code, event["verdict"]) == (0, "keep")
    assert event["code"] == "as verified"
    assert event["verification"]["steps"] >= 200
    assert event["ci95"][0] > 1
    assert "identical on" in messages


def test_a_kernel_that_was_changed_is_found_by_what_it_computes(found: Found) -> None:
    """One library computes with another constant, and the plan file lists its digest."""
    document = found.document()
    changed = 0
    for path in found.artifacts.glob("*.so"):
        content = path.read_bytes()
        patched = content.replace(struct.pack("<f", CONSTANT), struct.pack("<f", OTHER))
        if patched != content and not changed:
            path.write_bytes(patched)
            document["artifacts"]["files"][path.name] = hashlib.sha256(patched).hexdigest()
            changed += 1
    assert changed
    found.rewrite(document)
    code, event, _ = found.recheck()
    assert (code, event["verdict"]) == (4, "bits differ")
    assert event["speedup"] is None


def test_a_file_that_the_plan_does_not_list_is_not_loaded(found: Found) -> None:
    """It is not what was verified."""
    path = next(found.artifacts.glob("*.so"))
    path.write_bytes(path.read_bytes() + b" ")
    code, event, _ = found.recheck()
    assert (code, event["verdict"]) == (4, "bits differ")
    assert path.name in event["code"]


def test_a_baseline_that_became_faster_is_said(found: Found) -> None:
    """The kernels that the scope replaced are few now."""
    model = found.folder / MODEL.name
    model.write_text(model.read_text().replace("OPERATIONS = 24", "OPERATIONS = 1"))
    code, event, _ = found.recheck()
    assert (code, event["verdict"]) == (3, "slower now")
    assert any("model is" in change for change in event["changes"])


def test_a_plan_without_a_target_is_refused(found: Found) -> None:
    """In one line that says what to do."""
    document = found.document()
    del document["target"]
    found.rewrite(document)
    done = subprocess.run(
        [sys.executable, "-m", "tests.command", "recheck", str(found.plan)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "search with this sktune on a device" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert json.dumps(document)


def test_a_scope_that_ends_before_it_begins_is_refused(found: Found) -> None:
    """Its delivered code would be compared, which is not that of any run of units."""
    document = found.document()
    scope = document["plan"]["scopes"][0]
    assert scope["first"] != scope["last"]
    scope["first"], scope["last"] = scope["last"], scope["first"]
    found.rewrite(document)
    done = CliRunner().invoke(app, ["recheck", str(found.plan), "--json", "--runs", str(found.folder / "runs")])
    assert isinstance(done.exception, PlanError)
    assert "runs backwards" in str(done.exception)


def test_a_programs_weights_are_its_own(tmp_path: Path) -> None:
    """As in a search: another folder would change nothing, and the verdict would be on the program's."""
    target = {"spec": RecipeSpec("recipe.yaml", dtype="").to_dict(), "units": {}}
    (tmp_path / "plan.yaml").write_text(write_plan(Plan(), {}, target=target))
    message = refusal("recheck", str(tmp_path / "plan.yaml"), "--weights", "random")
    assert "--weights cannot be used with a recipe's plan, whose program decides it" in message
