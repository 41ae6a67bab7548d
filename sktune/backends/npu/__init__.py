"""TorchAir on Ascend: scopes become SuperKernels. Without torch_npu it cannot be loaded; reading its files can."""
