"""Stands in for TorchAir: it records the scopes that are entered."""

entered = []


class scope:
    class super_kernel:
        def __init__(self, label, options):
            self.label = f"{label} [{options}]"

        def __enter__(self):
            entered.append(self.label)

        def __exit__(self, *error):
            pass
