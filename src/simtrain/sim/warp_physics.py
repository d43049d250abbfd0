"""Physics steps on MuJoCo Warp, in the order that needs no extra forward after a step.

A physics step needs the position and velocity stages of its state, so they are kept current
between calls. A step then is actuation, smooth acceleration, constraint solver and integration; and
after it the position stage (kinematics, collision, constraints) and velocity stage of the new
state. So `Physics.step(n)` runs each stage n times, where n times ``mj_step`` and the
``mj_forward`` that makes derived fields current would run most of them n + 1 times.

That is enough: only writes and resets change the state between two calls, and the engine calls
`Physics.refresh` after them. Sensors are computed in the last step alone: the
acceleration-dependent ones before its integration, the others after it.
"""

from __future__ import annotations

import dataclasses

import mujoco
import mujoco_warp as mjw
import warp as wp
from torch import Tensor

from simtrain.sim import fields
from simtrain.sim import warp_kernels as kernels


class Physics:
    """The stages of a physics step, as launches on Warp's current device."""

    def __init__(self, model: mujoco.MjModel, warp_model: mjw.Model, data: mjw.Data) -> None:
        self._model = warp_model
        self._data = data
        self.posvel_data = dataclasses.replace(
            data, cacc=wp.zeros_like(data.cacc), cfrc_int=wp.zeros_like(data.cfrc_int)
        )
        """`data` for the position and velocity stages. They compute bias forces in ``cacc`` and
        ``cfrc_int``, which belong to the acceleration stage; here these are others."""
        self._has_sensors = model.nsensor > 0
        acceleration = fields.acceleration_sensors(model)
        self.acceleration_sensors = _columns(acceleration)
        """Which entries of ``sensordata`` depend on accelerations."""
        self._posvel_sensors = _columns(~acceleration)
        self.peaks = wp.zeros(2, dtype=int)
        """The most constraints of an environment, and contacts of all of them together, so far."""

    def step(self, nstep: int) -> None:
        """Run `nstep` physics steps from current position and velocity stages to current ones."""
        for i in range(nstep):
            last = i == nstep - 1
            self._accelerate(sensors=last)
            self.refresh(sensors=last)
        d = self._data
        inputs = [d.nefc, d.nacon, d.ncollision]
        wp.launch(kernels.update_peaks, d.nworld, inputs, outputs=[self.peaks])

    def refresh(self, *, sensors: bool) -> None:
        """Bring the position and velocity stages of all environments up to date."""
        m, d = self._model, self.posvel_data
        sensors = sensors and self._has_sensors
        mjw.fwd_position(m, d, factorize=False)
        if sensors:
            self._zero_sensors(self._posvel_sensors)
            mjw.sensor_pos(m, d)
        mjw.fwd_velocity(m, d)
        if sensors:
            mjw.sensor_vel(m, d)
        if m.opt.enableflags & mjw.EnableBit.ENERGY:
            mjw.energy_pos(m, d)
            mjw.energy_vel(m, d)

    def _accelerate(self, *, sensors: bool) -> None:
        """Run a physics step from current position and velocity stages; leaves them behind."""
        m, d = self._model, self._data
        if sensors:
            self._zero_sensors(self.acceleration_sensors)
        if m.opt.integrator == mjw.IntegratorType.DISCRETE:
            mjw.step2(m, d)
            return
        mjw.fwd_actuation(m, d)
        mjw.fwd_acceleration(m, d, factorize=True)
        mjw.solve(m, d)
        if sensors and self._has_sensors:
            mjw.sensor_acc(m, d)
        if m.opt.integrator == mjw.IntegratorType.EULER:
            mjw.euler(m, d)
        elif m.opt.integrator == mjw.IntegratorType.RK4:
            mjw.rungekutta4(m, self.posvel_data)
        else:
            mjw.implicit(m, d)

    def _zero_sensors(self, columns: wp.array) -> None:
        """Zero some sensors: MuJoCo Warp adds to some of them and does not write inactive ones."""
        d = self._data
        shape = (d.nworld, columns.size)
        wp.launch(kernels.zero_columns, shape, inputs=[columns], outputs=[d.sensordata])


def _columns(which: Tensor) -> wp.array:
    return wp.array(which.nonzero().flatten().numpy(), dtype=int)
