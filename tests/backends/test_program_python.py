"""`sktune doctor --python`: what is said of a Python is true of that one, not of sktune's own."""

import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from sktune.backends.availability import examine_program, usable_in_program
from sktune.backends.npu.availability import examine as npu_requirements
from sktune.backends.program_python import look_into
from sktune.core.errors import BadInputError
from sktune.core.events.commands import Finding, State
from tests.builders import sktune_command


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("bare") / "its environment"
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def packages(folder: Path, sources: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, str]:
    """Write modules and the metadata of packages; return the variables with which a Python finds them."""
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, version in versions.items():
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


def states(findings: tuple[Finding, ...]) -> dict[str, State]:
    """Return the state of each finding by what it is about."""
    return {finding.what: finding.state for finding in findings}


def found(findings: tuple[Finding, ...], what: str) -> Finding:
    """Return the finding about something."""
    return next(finding for finding in findings if finding.what == what)


# Stand-ins for torch 2.8 and torch_npu 2.8, with what the probe asks them.
STANDS_IN = {
    "torch/__init__.py": (
        "__version__ = '2.8.0'\nfrom types import SimpleNamespace as S\n"
        "npu = S(device_count=lambda: 16, get_device_name=lambda index: 'Ascend910_9392')\n"
        "compiler = S(list_backends=lambda exclude_tags: ['inductor', 'npugraph_ex'])\n"
    ),
    "torch_npu/__init__.py": "__version__ = '2.8.0.post4'\n",
    "torchair/__init__.py": (
        "from types import SimpleNamespace as S\n"
        "scope = S(super_kernel=lambda label: S(attrs=[('_super_kernel_scope', str(label))]))\n"
    ),
}
VERSIONS = {"torch": "2.8.0", "torch_npu": "2.8.0.post4", "transformers": "5.0.0", "numpy": "1.26.4"}


def test_versions_are_those_of_that_python(bare: Path, tmp_path: Path) -> None:
    """And what works there: SuperKernel scopes, npugraph_ex and Inductor of 2.8."""
    findings = examine_program(look_into(str(bare), variables=packages(tmp_path, STANDS_IN, VERSIONS)))
    assert found(findings, "torch").found == "2.8.0"
    assert found(findings, "torch_npu").found == "2.8.0.post4"
    assert found(findings, "transformers").found == "5.0.0"
    assert found(findings, "numpy").found == "1.26.4"
    assert str(bare) in found(findings, "Python").found
    assert states(findings)["torchair"] is states(findings)["devices"] is State.OK
    assert states(findings)["npugraph_ex"] is State.OK
    assert found(findings, "regions").found == "torch 2.8.0"
    assert states(findings)["regions"] is State.OK


def test_what_is_not_installed_is_missing(bare: Path) -> None:
    """Only what is there can be wrong."""
    findings = examine_program(look_into(str(bare)))
    assert {states(findings)[what] for what in ("torch", "torch_npu", "npugraph_ex", "regions")} == {State.MISSING}


def test_sktunes_own_torch_npu_is_no_advice_for_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a recipe's Python, pip would replace what the program needs."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "for a recipe, doctor --recipe" in found(tuple(npu_requirements()), "torch_npu").fix


def test_captured_graphs_need_what_the_npu_needs(bare: Path, tmp_path: Path) -> None:
    """npugraph_ex is there, but no device: nothing can be searched with it."""
    findings = examine_program(look_into(str(bare), variables=packages(tmp_path, STANDS_IN, VERSIONS)))
    assert states(findings)["npugraph_ex"] is State.OK
    assert states(findings)["CANN"] is State.MISSING
    assert not {"npu", "npugraph-ex"} & set(usable_in_program(findings))


def test_sktunes_own_python_can_be_looked_into() -> None:
    """The torch here is one whose regions sktune compiles."""
    findings = examine_program(look_into(sys.executable))
    assert "inductor" in usable_in_program(findings)
    assert "sim" not in usable_in_program(findings)


def test_what_was_sourced_is_said_and_counts(bare: Path, tmp_path: Path) -> None:
    """CANN is the one whose variables a sourced file sets."""
    install = tmp_path / "its cann" / "latest" / "ascend_toolkit_install.info"
    install.parent.mkdir(parents=True)
    install.write_text("package_name=toolkit\nversion=9.1.0\n")
    set_env = tmp_path / "set env.sh"
    set_env.write_text(f"echo noise\nexport ASCEND_HOME_PATH='{install.parents[1]}'\n")
    findings = examine_program(look_into(str(bare), [set_env]))
    assert found(findings, "CANN").found.startswith("9.1.0")
    assert str(set_env) in found(findings, "environment").found


def test_a_python_without_torch(bare: Path) -> None:
    """Torch is missing, and so is all that needs it; nothing of sktune's environment is seen."""
    findings = examine_program(look_into(str(bare)))
    assert states(findings)["torch"] is State.MISSING
    assert usable_in_program(findings) == ()
    assert all(finding.fix for finding in findings if finding.state is not State.OK)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import time\ntime.sleep(600)", "did not end in time"),
        ("import os\nos._exit(7)", "7"),
        ("raise ImportError('libhccl.so: no such file')", "libhccl.so"),
    ],
)
def test_an_import_that_does_not_work(bare: Path, tmp_path: Path, source: str, words: str) -> None:
    """It is said what happened to which package; those before it are known."""
    variables = packages(tmp_path, {**STANDS_IN, "torch_npu/__init__.py": source}, VERSIONS)
    findings = examine_program(look_into(str(bare), variables=variables, limit_s=3))
    assert states(findings)["torch"] is State.OK
    assert words in found(findings, "torch_npu").found
    assert found(findings, "torch_npu").state is found(findings, "npugraph_ex").state is State.WRONG


def test_a_python_that_hangs(tmp_path: Path) -> None:
    """It is ended, with what it has started."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nsleep 6417 & wait\n")
    python.chmod(0o755)
    (finding,) = examine_program(look_into(str(python), limit_s=1))
    assert (finding.what, finding.state) == ("Python", State.WRONG)
    assert subprocess.run(["pgrep", "-f", "^sleep 6417"], check=False, capture_output=True).returncode == 1


@pytest.mark.parametrize("path", ["/nowhere/python3", "/bin/ls", "/"])
def test_what_is_no_python(path: str, tmp_path: Path) -> None:
    """One line, and the exit code of bad input."""
    with pytest.raises(BadInputError) as refused:
        look_into(path)
    assert "\n" not in str(refused.value)
    done = sktune_command("doctor", "--python", path, folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
