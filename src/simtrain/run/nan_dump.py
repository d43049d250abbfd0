"""The last steps before a simulation failed, in ``<run>/nan_dump/``, to be looked at and replayed.

  nan_dump/iteration_12_rank_0_env_7/states.npz    arrays by MuJoCo's names of the fields
                                    /model.mjb     the environment's own model

``numpy.load(..., allow_pickle=False)`` and ``mujoco.MjModel.from_binary_path`` read them. With the
fields of a row in an ``MjData``, stepping ``decimation`` times leads to the next row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simtrain.run.directory import written_whole


def write_dump(
    run: Path, name: str, states: dict[str, np.ndarray], model: bytes, facts: dict[str, int]
) -> Path:
    """Write a dump; its folder.

    Args:
        run: the run directory.
        name: of the folder.
        states: field -> values, ``(steps, ...)``.
        model: an MJB.
        facts: numbers to keep beside the states.

    Raises:
        OSError: it cannot be written.
    """
    folder = run / "nan_dump" / name
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {**states, **{fact: np.array(value) for fact, value in facts.items()}}
    with written_whole(folder / "states.npz") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    with written_whole(folder / "model.mjb") as file:
        file.write(model)
    return folder
