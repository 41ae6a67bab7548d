"""Says what the suite covers, and leaves it out where TorchAir is missing."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

HAS_TORCHAIR = importlib.util.find_spec("torch_npu") is not None
collect_ignore_glob = [] if HAS_TORCHAIR else ["test_*.py"]


def pytest_report_header() -> list[str]:
    """Return what is proved here and what is not."""
    if not HAS_TORCHAIR:
        return ["TorchAir conformance: not in this environment; benchmarks/npu_env.py makes one"]
    return [
        f"TorchAir conformance: the true front end of torch_npu {importlib.metadata.version('torch_npu')}, no device",
        "  covered: graph construction, scopes, options, numerics of the converted graph; refusals; plan files applied",
        "  left out: the engine; for the documentation's example, an Atlas A3 is said to be there",
        "  only a device can show: GE compile, fusion, timing",
    ]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a working folder, where TorchAir dumps its graphs."""
    monkeypatch.chdir(tmp_path)
