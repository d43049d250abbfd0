"""How long torch's OpenMP threads wait for work before they sleep. Imports no torch."""

from __future__ import annotations

import os


def limit_spinning() -> None:
    """Let OpenMP threads spin for some ten microseconds; call it before torch is imported.

    By default they spin for milliseconds after each operation. Against MuJoCo's threads, another
    rank or any busy process on the same cores, that makes an update up to fifty times slower.
    Sleeping at once, on the other hand, makes small operations wait for the kernel to wake them:
    the update of a cart-pole then takes half as long again. Values that the user set hold.
    """
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = "10000"
