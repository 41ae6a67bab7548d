"""What TorchAir itself can prove without a device; run in the environment that ``make_env.py`` makes."""
