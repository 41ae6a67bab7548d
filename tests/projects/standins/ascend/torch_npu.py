"""Stands in for torch_npu where there is no NPU."""
