"""Conformance with npugraph_ex, apart from TorchAir: torch_npu 2.13 does not have both in one process."""
