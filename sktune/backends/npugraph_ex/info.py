"""Describes the npugraph-ex backend before it is imported."""

from dataclasses import replace

from sktune.backends.info import BackendInfo
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npugraph_ex.options import OPTIONS
from sktune.core.scope_flavour import ScopeFlavour

INFO = BackendInfo(
    name="npugraph-ex",
    backend_class="sktune.backends.npugraph_ex.backend:NpugraphExBackend",
    devices=("npu",),
    options=OPTIONS,
    scope_flavour=ScopeFlavour.CAPTURED,
    needs_fresh_process=True,
    worker_folders=NPU.worker_folders,
    takes_torchair=NPU.takes_torchair,
    fingerprint=NPU.fingerprint,
    examine="sktune.backends.npugraph_ex.availability:examine",
    needs=(NPU.name,),
    examine_program="sktune.backends.npugraph_ex.availability:examine_program",
    options_of=lambda torch_npu: replace(OPTIONS, torch_npu=torch_npu),
)
