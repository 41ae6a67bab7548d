"""What the supervisor gives its workers."""

import resource
from pathlib import Path

import pytest

from sktune.fingerprint import fingerprint
from sktune.request import Request
from sktune.search_loop import space_spec
from sktune.supervisor import Supervisor
from tests.models import page_faults


@pytest.mark.parametrize(("own", "keeps"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
def test_a_worker_keeps_the_memory_that_it_frees(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], keeps: bool
) -> None:
    """Steps do not take it from the kernel again and again, unless the user wants it so; studies say which."""
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    request = Request(f"{page_faults.__file__}:target")
    spec, preset = request.target()
    wanted = space_spec(request, preset)
    assert all(f"{name}={value}" in fingerprint(spec, wanted)["memory"] for name, value in own.items())
    with Supervisor(spec, wanted, tmp_path, compile_cache, 60) as supervisor:
        faults = int(supervisor.open().description)
    again = page_faults.ROUNDS * page_faults.BLOCK_BYTES // resource.getpagesize()
    assert faults < again / 10 if keeps else faults > again
