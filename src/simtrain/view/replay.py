"""The last steps of a failed simulation, one by one: a film, see `simtrain.view.film`."""

import mujoco
import numpy as np

from simtrain.sim.mujoco_engine import ignore_warning


class Replay:
    """The film of the last steps before a simulation failed; `failure` describes the failure."""

    title = "replay of a failure"
    end_seconds = 2.0

    def __init__(
        self, model: mujoco.MjModel, states: dict[str, np.ndarray], decimation: int, message: str
    ) -> None:
        """Simulate the failure again, and go to the first control step.

        `states` are MuJoCo's fields before each step, ``(steps, ...)``; `message` is the engine's.
        """
        mujoco.set_mju_user_warning(ignore_warning)  # `failure` has it
        self.model, self.data = model, mujoco.MjData(model)
        self._states, self.frames = states, len(states["qpos"])
        self.fps = 1.0 / (float(model.opt.timestep) * decimation)
        self.failure = self._fail_again(decimation) or [
            "simulated again on the CPU it does not fail; training said: " + message
        ]
        self.show(0)

    def show(self, step: int) -> list[str]:
        """See `Film.show`; positions that are not finite do not change `data`."""
        state = {field: values[step : step + 1] for field, values in self._states.items()}
        if np.isfinite(state["qpos"]).all():
            self._set_state(step)
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
        failed = step == self.frames - 1
        largest = [
            f"|{field}| {np.abs(state[field]).max():.3g}"
            for field in ("qpos", "qvel", "act", "ctrl")
            if field in state and state[field].size
        ]
        return [
            f"step {step + 1} of {self.frames}, {state['time'].item():.3f} s"
            + (", in which it failed" if failed else ""),
            "largest " + "   ".join(largest),
            *(f"not finite: {name}" for name in self._not_finite(state)),
            *(self.failure if failed else ()),
        ]

    def _set_state(self, step: int) -> None:
        mujoco.mj_resetData(self.model, self.data)
        for field, values in self._states.items():
            shape = np.shape(getattr(self.data, field))
            setattr(self.data, field, values[step].reshape(shape))

    def _fail_again(self, decimation: int) -> list[str]:
        """Simulate the last step as training did; lines that describe its failure."""
        self._set_state(self.frames - 1)
        for substep in range(decimation):
            mujoco.mj_step(self.model, self.data)
            warnings = [
                str(mujoco.mju_warningText(kind, int(warning.lastinfo))).strip()
                for kind, warning in enumerate(self.data.warning)
                if warning.number
            ]
            if warnings:
                return [f"physics step {substep + 1}: {text}" for text in warnings]
        state = {name: getattr(self.data, name) for name in ("qpos", "qvel", "act")}
        return [f"then not finite: {name}" for name in self._not_finite(state)]

    def _not_finite(self, state: dict[str, np.ndarray]) -> list[str]:
        """Names of the values that are not finite, each with its joint or actuator."""
        names = []
        for field, values in state.items():
            for index in np.flatnonzero(~np.isfinite(values)).tolist():
                owner = f"entry {index}"
                if field in ("qpos", "qvel", "qacc_warmstart"):
                    starts = self.model.jnt_qposadr if field == "qpos" else self.model.jnt_dofadr
                    joint = int(np.searchsorted(starts, index, side="right")) - 1
                    owner = f"joint {self.model.joint(joint).name}"
                elif field == "ctrl":
                    owner = f"actuator {self.model.actuator(index).name}"
                names.append(f"{field} of {owner}")
        return list(dict.fromkeys(names))
