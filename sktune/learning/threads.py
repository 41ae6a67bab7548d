"""Threads of sktune's own arithmetic: one, as its matrices are small and a busy core would hold up all others."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread meanwhile, in the whole process; also a decorator.

    Threads of BLAS spin while they wait for one another. Beside a process of the lowest priority on one of two cores, a
    product of two 400 x 400 matrices takes eight times as long with two threads as with one.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    import numpy  # noqa: F401 - both packages bring a BLAS, which must be loaded to be found
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
