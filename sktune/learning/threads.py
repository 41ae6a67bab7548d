"""Threads of sktune's own arithmetic: one, as its matrices are small and a busy core would hold up all others."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

SIZE = 256
"""Of a matrix: the product of smaller ones may do without working memory."""


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
    """Return the loaded BLAS libraries, once each has its working memory.

    OpenBLAS takes it at its first product, and never returns from there if there is too little.
    """
    import numpy as np  # both packages bring a BLAS, which must be loaded to be found
    import scipy.linalg

    libraries = ThreadpoolController()
    with libraries.limit(limits=1, user_api="blas"):
        scipy.linalg.cholesky(np.eye(SIZE) @ np.eye(SIZE))
    return libraries
