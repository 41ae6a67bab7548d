"""What TorchAir itself can prove without a device; run in the environment that ``benchmarks/npu_env.py`` makes."""
