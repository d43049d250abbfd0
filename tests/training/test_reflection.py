"""How terms are reflected, and what is said where it cannot be known."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import pytest
import torch
from tiny_task import steps_lived, tiny_task

from simtrain import (
    ActionTermCfg,
    CommandTermCfg,
    JointPositionActionCfg,
    Mirror,
    ObservationTermCfg,
    mdp,
)
from simtrain.env.commands import CommandTerm
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.env.model import compile_model
from simtrain.env.reading import mirrored_as
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.training.reflection import Reflection, mirror_maps

ROBOT = """
<mujoco>
  <worldbody><body name="trunk">
    <freejoint name="root"/> <geom size="0.1"/>
    <body pos="0 0.1 0"><joint name="roll_left" axis="1 0 0"/><geom size="0.1"/></body>
    <body pos="0 -0.1 0"><joint name="roll_right" axis="1 0 0"/><geom size="0.1"/></body>
    <body pos="0 0.2 0">
      <joint name="L_lift" type="slide" axis="0 0.6 0.8"/> <geom size="0.1"/>
    </body>
    <body pos="0 -0.2 0">
      <joint name="R_lift" type="slide" axis="0 0.6 -0.8"/> <geom size="0.1"/>
    </body>
    <body pos="0.1 0 0"><joint name="nod" axis="0 1 0"/><geom size="0.1"/></body>
    <body pos="0.1 0.1 0"><joint name="odd" axis="0 1 1"/><geom size="0.1"/></body>
    <body pos="0.1 0.1 0"><joint name="aside" axis="1 0 0"/><geom size="0.1"/></body>
    <body pos="0.1 0.3 0"><joint name="left_ball" type="ball"/><geom size="0.1"/></body>
    <body pos="0.1 -0.3 0"><joint name="right_ball" type="ball"/><geom size="0.1"/></body>
    <body pos="0.1 0.3 0"><joint name="left_one" axis="0 1 0"/><geom size="0.1"/></body>
  </body></worldbody>
  <actuator>
    <position name="roll_left" joint="roll_left" ctrlrange="-1 2"/>
    <position name="roll_right" joint="roll_right" ctrlrange="-2 1"/>
    <position name="L_lift" joint="L_lift"/> <position name="R_lift" joint="R_lift"/>
    <position name="nod" joint="nod"/> <position name="aside" joint="aside"/>
  </actuator>
  <keyframe><key name="lean" qpos="0 0 0 1 0 0 0 .1 -.1 .2 -.2 .3 0 0 1 0 0 0 1 0 0 0 0"/>
    <key name="crooked" qpos="0 0 0 1 0 0 0 .1 .1 0 0 0 0 0 1 0 0 0 1 0 0 0 0"/></keyframe>
</mujoco>
"""
MOVING = ("roll_.*", "._lift", "nod")


def robot() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(ROBOT)


def _task(*terms: ObservationTermCfg, **changes):
    settings = {
        "model": robot,
        "observations": {"actor": {f"term{i}": term for i, term in enumerate(terms)}},
        "actions": {"move": JointPositionActionCfg(MOVING)},
        "symmetry": Mirror(),
    }
    return tiny_task(**(settings | changes))


def _reflect(*terms: ObservationTermCfg, **changes) -> Reflection:
    cfg = _task(*terms, **changes)
    return Reflection(cfg, compile_model(cfg))


def _pair(env):
    return torch.ones(env.num_envs, 2)


def test_partners_are_found_from_names_and_signs_from_the_model():
    found = _reflect(ObservationTermCfg(mdp.joint_pos, joints=MOVING), keyframe="lean")
    # Rolls turn about x, lifts slide along y by the same and along z by opposite axes.
    expected = [(1, -1.0), (0, -1.0), (3, -1.0), (2, -1.0), (4, 1.0)]
    assert found.observations["actor"]["term0"] == expected
    assert found.actions == expected


def test_base_velocities_change_as_vectors_and_pseudo_vectors_do():
    terms = [ObservationTermCfg(f) for f in (mdp.base_lin_vel, mdp.base_ang_vel)]
    (linear, angular) = _reflect(*terms).observations["actor"].values()
    assert linear == [(0, 1.0), (1, -1.0), (2, 1.0)]
    assert angular == [(0, -1.0), (1, 1.0), (2, -1.0)]
    forward = {"symmetry": Mirror({}, "x"), "actions": {"roll": JointPositionActionCfg("aside")}}
    linear, _ = _reflect(*terms, **forward).observations["actor"].values()
    assert linear == [(0, -1.0), (1, 1.0), (2, 1.0)]


def test_a_grid_is_flipped_from_left_to_right():
    scan = ObservationTermCfg(mdp.height_scan, size=(0.2, 0.4), resolution=0.2)
    places = [place for place, _ in _reflect(scan).observations["actor"]["term0"]]
    assert places == [2, 1, 0, 5, 4, 3]


def test_contacts_change_places_in_every_physics_step():
    sensors = "<sensor><touch name='{0}' site='{0}'/><touch name='{1}' site='{1}'/></sensor>"
    sites = "<site name='left_foot' pos='0 .1 0'/><site name='right_foot' pos='0 -.1 0'/>"
    model = ROBOT.replace('<geom size="0.1"/>', '<geom size="0.1"/>' + sites, 1)
    model = model.replace("</mujoco>", sensors.format("left_foot", "right_foot") + "</mujoco>")
    term = ObservationTermCfg(mdp.foot_contact_history, sensors=".*_foot")
    found = _reflect(term, model=lambda: mujoco.MjSpec.from_string(model), decimation=2)
    assert found.observations["actor"]["term0"] == [(1, 1.0), (0, 1.0), (3, 1.0), (2, 1.0)]


def _swapped(reflection, params):
    return [(1, 1.0), (0, 1.0)]


@pytest.mark.parametrize(
    ("term", "places"),
    [
        (
            ObservationTermCfg(mdp.joint_pos, joints="roll_.*", mirror="each_name"),
            [(1, 1.0), (0, 1.0)],
        ),
        (
            ObservationTermCfg(_pair, mirror=(1.0, -1.0), history_length=2),
            [(0, 1.0), (1, -1.0), (2, 1.0), (3, -1.0)],
        ),
        (
            ObservationTermCfg(_pair, mirror=("vector", -1.0, _swapped)),
            [(0, 1.0), (1, -1.0), (2, 1.0), (3, -1.0), (5, 1.0), (4, 1.0)],
        ),
    ],
    ids=["without signs", "a history, step by step", "a rule made of others"],
)
def test_a_term_may_have_a_rule_of_its_own(term, places):
    assert _reflect(term).observations["actor"]["term0"] == places


def test_maps_of_an_environment_reflect_its_observations_and_back():
    cfg = _task(
        ObservationTermCfg(mdp.joint_pos, joints=MOVING),
        ObservationTermCfg(_pair, mirror=(1.0, -1.0)),
    )
    maps = mirror_maps(Env(cfg, 2, EngineCfg(threads=1)), "cpu")
    row = torch.arange(1.0, 8.0)
    image = maps.observations["actor"](row.expand(2, 7))
    assert image[1].tolist() == [-2.0, -1.0, -4.0, -3.0, 5.0, 6.0, -7.0]
    assert torch.equal(maps.observations["actor"](image)[0], row)
    assert maps.actions(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])).tolist() == [
        [-2.0, -1.0, -4.0, -3.0, 5.0]
    ]


def test_a_rule_for_another_number_of_entries_is_told():
    cfg = _task(ObservationTermCfg(_pair, mirror=(1.0, -1.0, 1.0)))
    env = Env(cfg, 2, EngineCfg(threads=1))
    with pytest.raises(ConfigError, match=r"actor\.term0 has 2 entries, and its mirror rule 3"):
        mirror_maps(env, env.device)


class Target(CommandTerm):
    def __init__(self, env) -> None:
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask) -> None: ...


class Push(ActionTerm):
    dim = 2

    def apply(self, actions, ctrl) -> None: ...


@dataclass
class PushCfg(ActionTermCfg):
    def build(self, model, start, device):
        return Push()


def test_commands_and_actions_of_ones_own_tell_their_rules():
    term = ObservationTermCfg(mdp.generated_commands, command="target")
    last = ObservationTermCfg(mdp.last_action)
    changes = {
        "commands": {
            "target": CommandTermCfg(mirrored_as((-1.0,))(type("T", (Target,), {})), (1, 1))
        },
        "actions": {"push": PushCfg(mirror=(1.0, -1.0)), "nod": JointPositionActionCfg("nod")},
    }
    found = _reflect(term, last, **changes)
    assert found.observations["actor"]["term0"] == [(0, -1.0)]
    assert found.actions == found.observations["actor"]["term1"] == [(0, 1.0), (1, -1.0), (2, 1.0)]


def _mistake(message: str, func=None, *, task=None, **params):
    """A term, if there is one, changes of the task, and a part of the message."""
    return [] if func is None else [ObservationTermCfg(func, **params)], task or {}, message


_POS = mdp.joint_pos
MISTAKES = [
    _mistake("needs a task that is symmetric", task={"symmetry": None}),
    _mistake(r"--env\.observations\.actor\.term0: its mirror rule is not known; give", steps_lived),
    _mistake(
        r"--env\.actions\.push: it has 2 entries, and its mirror rule 1",
        task={"actions": {"push": PushCfg(mirror=(1.0,))}},
    ),
    _mistake("'vektor'; it must be one of vector, pseudo_vec", steps_lived, mirror="vektor"),
    _mistake(
        "no name is the mirror image of 'roll_left' among roll_left;", _POS, joints="roll_left"
    ),
    _mistake(  # a pattern without parentheses
        "several names are the mirror image of 'roll_left' among roll_left, roll_right, ",
        _POS,
        joints=("roll_.*", "._lift"),
        task={"symmetry": Mirror({".*left|L.*": ".*right|R.*"})},
    ),
    _mistake("'odd' is not symmetric: their axes differ", _POS, joints="odd"),
    _mistake("'aside' is not symmetric: their axes are 200 mm apart", _POS, joints="aside"),
    _mistake("only hinges and slides can be", _POS, joints=".*_ball"),
    _mistake(
        "'roll_left' and 'R_lift' are no mirror images: only hinges and slides",
        _POS,
        joints=("roll_left", "R_lift"),
        task={"symmetry": Mirror({"roll_left": "R_lift"})},
    ),
    _mistake(
        "the initial positions are not symmetric: those of 'roll_left'",
        mdp.joint_pos_rel,
        joints="roll_.*",
        task={"keyframe": "crooked", "actions": {"nod": JointPositionActionCfg("nod")}},
    ),
    *(
        _mistake(
            r"the targets \(scale, offset, clip, ctrlrange\) are not symmetric: those of 'roll_l",
            task={"actions": {"roll": JointPositionActionCfg("roll_.*", **{name: value})}},
        )
        for name, value in {"scale": {"roll_left": 2.0}, "offset": 0.5, "clip": (-0.5, 2.0)}.items()
    ),
    _mistake(
        r"its clip, 0\.0 1\.0, is not the same for both signs",
        _pair,
        mirror=(1.0, -1.0),
        clip=(0.0, 1.0),
    ),
    _mistake("its scale is not the same for an entry", _POS, joints="roll_.*", scale=(1.0, 2.0)),
]


@pytest.mark.parametrize(("terms", "changes", "message"), MISTAKES)
def test_what_is_not_symmetric_is_told(terms, changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        _reflect(*terms, **changes)
    assert "\n" not in str(error.value)
