from contextlib import nullcontext


def superkernel_scope(enable: bool, scope: str, options: str = ""):
    if not enable:
        return nullcontext()
    import torchair

    return torchair.scope.super_kernel(scope, options)
