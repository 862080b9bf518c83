"""Memory that processes on one machine share."""

import ctypes

M_MMAP_THRESHOLD = -3  # glibc's malloc.h
LARGE = 2**22


def share_memory() -> None:
    """Make this process give each block of LARGE bytes or more back to the system when it is freed. glibc by itself
    raises this limit as large blocks are freed, and then keeps freed blocks that lie between used ones. Does nothing
    with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Give freed memory back to the system. glibc would keep it, so trainer and engine together would hold the sum of
    their peaks. Does nothing with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
