"""Numbers that were not finite, over iterations and ranks: counted, told, and in the end too many.

A run goes on as long as it can learn. It stops, on all ranks together, once it could not for ten
iterations in a row: no optimizer step was made, or every environment had to be reset.
"""

from __future__ import annotations

from simtrain.env.nan_guard import Dump, Failures
from simtrain.errors import DivergenceError
from simtrain.launch.rank import Rank

PATIENCE = 10
"""Iterations in a row without anything learned, after which a run stops."""
MOST_DUMPS = 10
"""How many failures of simulations are kept in a run, of each rank."""

_RESETS = "Sim/nan_resets"


class FailureWatch:
    """What went wrong in a run so far."""

    def __init__(self, rank: Rank, num_envs: int, steps_per_update: int) -> None:
        """Begin.

        Args:
            rank: this process.
            num_envs: environments of each rank.
            steps_per_update: optimizer steps of an iteration.
        """
        self._rank = rank
        self._num_envs = num_envs
        self._steps = steps_per_update
        self._lost_updates = 0
        self._lost_rollouts = 0
        self._dumps = 0

    def sums(self, failures: Failures) -> dict[str, tuple[float, float]]:
        """What an iteration's metrics need of this rank: name -> sum and count."""
        # Counts are added up over ranks, not averaged.
        each = 1.0 / self._rank.world_size
        found = {_RESETS: (float(failures.resets), each)}
        if failures.terms:
            found["Sim/nan_terms"] = (float(len(failures.terms)), each)
        return found

    def dumps(self, failures: Failures, metrics: dict[str, float]) -> tuple[tuple[int, Dump], ...]:
        """Dumps of all ranks on rank 0, with their ranks; all ranks call it together."""
        if metrics[_RESETS] == 0.0 or self._dumps == MOST_DUMPS:
            return ()
        self._dumps += 1
        dumps = self._rank.gather_objects(failures.dump) or []
        return tuple((rank, dump) for rank, dump in enumerate(dumps) if dump is not None)

    def count(self, skipped_steps: int, metrics: dict[str, float]) -> None:
        """Count an iteration, by numbers that are the same on all ranks."""
        lost = skipped_steps == self._steps
        self._lost_updates = self._lost_updates + 1 if lost else 0
        lost = metrics[_RESETS] >= self._num_envs * self._rank.world_size
        self._lost_rollouts = self._lost_rollouts + 1 if lost else 0

    def check(self, metrics: dict[str, float]) -> None:
        """Stop a run that cannot go on; `metrics` are the last iteration's.

        Raises:
            DivergenceError: nothing was learned for `PATIENCE` iterations in a row.
        """
        if self._lost_updates >= PATIENCE:
            names = ("Loss/value", "Loss/surrogate", "Loss/kl", "Loss/learning_rate")
            seen = ", ".join(f"{name} {metrics[name]:g}" for name in names)
            raise DivergenceError(
                f"no gradient was finite for {PATIENCE} iterations in a row, and nothing was "
                f"learned; the last of them had {seen}. A reward or an observation may have become "
                "huge; a smaller --ppo.learning-rate or a clip on the observation may help"
            )
        if self._lost_rollouts >= PATIENCE:
            raise DivergenceError(
                "as many simulations failed, and were reset, as there are environments, in each of "
                f"{PATIENCE} iterations in a row; nan_dump/ in the run's folder has the last steps "
                "of some. A smaller --env.timestep may help"
            )

    def state(self) -> list[int]:
        """What goes on from iteration to iteration."""
        return [self._lost_updates, self._lost_rollouts, self._dumps]

    def set_state(self, state: list[int]) -> None:
        """Continue from what `state` returned."""
        self._lost_updates, self._lost_rollouts, self._dumps = state
