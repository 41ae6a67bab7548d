"""Prints what a Python has, one JSON object a line; run by that Python, with its standard library alone, from 3.9 on.

``python -c TEXT`` looks at versions and variables, then starts itself with the argument ``imports`` and a time limit in
seconds: torch, torch_npu and torchair are imported only there, since an import may hang, end the process, break torch.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PACKAGES = ("torch", "torch_npu", "torchair", "transformers", "numpy", "protobuf")
VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_RT_VISIBLE_DEVICES", "PYTHONPATH", "CXX")


def say(**facts: object) -> None:
    """Print facts; they are kept even if the process ends at the next step."""
    sys.stdout.write("sktune:" + json.dumps(facts) + "\n")
    sys.stdout.flush()


def cann_version() -> str:
    """Return CANN's version from its installation; empty if there is none."""
    home = os.environ.get("ASCEND_HOME_PATH", "")
    for path in sorted(Path(home).glob("*/ascend_toolkit_install.info")) if home else []:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("version="):
                return line.partition("=")[2].strip()
    return ""


def look(text: str, limit_s: float) -> None:
    """Say what can be known without an import, and what imports say in a process of its own."""
    import importlib.metadata as metadata
    import shutil

    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    say(
        version=platform.python_version(),
        executable=sys.executable,
        machine=platform.machine(),
        versions=versions,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        cann=cann_version(),
        compiler=shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++") or "",
    )
    if "torch" not in versions:
        return
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    try:
        done = subprocess.run(  # noqa: S603 - this very Python
            [sys.executable, "-c", text, "imports"], env=environment, capture_output=True, timeout=limit_s, check=False
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors, code = expired.stdout or b"", expired.stderr or b"", None
    sys.stdout.write(output.decode(errors="replace"))
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    say(imports_ended="time" if code is None else code, last_line=lines[-1][:300] if lines and code else "")


def imports() -> None:
    """Say what each import says, in the order in which a program does it."""
    say(importing="torch")
    import torch

    say(torch=torch.__version__, importing="torch_npu")
    import importlib.util

    if importlib.util.find_spec("torch_npu") is None:
        say(importing="")
        return
    import torch_npu

    say(torch_npu=torch_npu.__version__, importing="torchair")
    import torchair

    scope = getattr(getattr(torchair, "scope", None), "super_kernel", None)
    takes_none = False
    if scope is not None:
        try:
            takes_none = dict(scope(None).attrs)["_super_kernel_scope"] is not None
        except Exception:  # noqa: BLE001 - whatever an older one makes of None
            takes_none = False
    say(takes_none=takes_none, importing="npugraph_ex")
    backends = [str(name) for name in torch.compiler.list_backends(exclude_tags=None)]
    npu = vars(torch)["npu"]
    say(npugraph_ex="npugraph_ex" in backends or hasattr(npu, "npugraph_ex"), importing="devices")
    count = npu.device_count()
    say(devices=count, device=npu.get_device_name(0) if count else "", importing="")


if __name__ == "__main__":
    if sys.argv[1:] == ["imports"]:
        imports()
    else:
        look(sys.argv[1], float(sys.argv[2]))
