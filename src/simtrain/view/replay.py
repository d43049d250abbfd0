"""The last steps of a simulation that failed, to look at: one by one, and the failure once more."""

from __future__ import annotations

import mujoco
import numpy as np

from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.training.features.failures import SavedDump

_LARGEST = ("qpos", "qvel", "act", "ctrl")


class Replay:
    """A simulation that stands in one of the steps of a dump."""

    def __init__(self, dump: SavedDump) -> None:
        mujoco.set_mju_user_warning(ignore_warning)  # told by `failure`
        self.dump = dump
        self.model = dump.model
        self.data = mujoco.MjData(dump.model)
        """The simulation, with up-to-date positions."""
        self.failure = self._fail_again()
        """What happens in the last step, in lines."""
        self.step = 0
        self.show(0)

    def show(self, step: int) -> list[str]:
        """Go to a step, in place, and say what is worth knowing of it, in lines.

        Where positions are not finite, the last ones that are stay to be seen.
        """
        self.step = step
        dump = self.dump
        if np.isfinite(dump.states["qpos"][step]).all():
            self._set(step)
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
        last = step == dump.steps - 1
        lines = [
            f"step {step + 1} of {dump.steps}, {dump.states['time'][step].item():.3f} s"
            + (", in which it failed" if last else "")
        ]
        largest = [
            f"|{field}| {np.abs(values).max():.3g}"
            for field in _LARGEST
            if (values := dump.states.get(field, np.empty(0))[step : step + 1]).size
        ]
        lines.append("largest " + "   ".join(largest))
        lines += [f"not finite: {name}" for name in self._not_finite(dump.states, step)]
        return lines + (self.failure if last else [])

    def _set(self, step: int) -> None:
        mujoco.mj_resetData(self.model, self.data)
        for field, values in self.dump.states.items():
            if field == "time":
                self.data.time = values[step].item()
            else:
                getattr(self.data, field)[:] = values[step].reshape(getattr(self.data, field).shape)

    def _fail_again(self) -> list[str]:
        """Simulate the last step as training did."""
        self._set(self.dump.steps - 1)
        for substep in range(self.dump.decimation):
            mujoco.mj_step(self.model, self.data)
            warnings = [
                str(mujoco.mju_warningText(kind, int(self.data.warning[kind].lastinfo))).strip()
                for kind in range(len(self.data.warning))
                if self.data.warning[kind].number
            ]
            if warnings:
                return [f"physics step {substep + 1}: {text}" for text in warnings]
        state = {name: getattr(self.data, name)[None] for name in ("qpos", "qvel", "act")}
        broken = [f"then not finite: {name}" for name in self._not_finite(state, 0)]
        return broken or [
            "simulated again on the CPU it does not fail; training said: " + self.dump.said
        ]

    def _not_finite(self, states: dict[str, np.ndarray], step: int) -> list[str]:
        """Names of what is not finite, each with the joint or actuator that it is of."""
        found = []
        for field, values in states.items():
            for index in np.flatnonzero(~np.isfinite(values[step])):
                found.append(f"{field} of {self._owner(field, int(index))}")
        return list(dict.fromkeys(found))

    def _owner(self, field: str, index: int) -> str:
        model = self.model
        if field in ("qvel", "qacc_warmstart"):
            return f"joint {model.joint(int(model.dof_jntid[index])).name}"
        if field == "qpos":
            joint = int(np.searchsorted(model.jnt_qposadr, index, side="right")) - 1
            return f"joint {model.joint(joint).name}"
        if field == "ctrl":
            return f"actuator {model.actuator(index).name}"
        return f"entry {index}"
