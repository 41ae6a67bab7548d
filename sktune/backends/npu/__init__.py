"""TorchAir on Ascend: scopes become SuperKernels. Needs torch_npu; readers of its files, in ``ascend``, do not."""
