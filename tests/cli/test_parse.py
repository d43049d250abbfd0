"""What tyro rejects, in one line; fails if a version of tyro reports it in another way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from simtrain.algorithms.cfg import Flag
from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import default_config
from simtrain.errors import ConfigError


@dataclass
class Flags:
    """Flags of every kind."""

    count: int = 1
    limit: float | None = None
    sizes: tuple[int, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    scale: float | dict[str, float] = 1.0
    engine: Literal["mujoco", "warp"] = "mujoco"
    until: str | None = None
    video: Flag = False
    parameters: dict[str, float] = field(default_factory=lambda: {"joint_limit": 0.1})


REJECTED = [
    ("--cuont 3", "there is no flag --cuont (did you mean '--count'"),
    ("--parameters.joint-limits 3", "there is no flag --parameters.joint-limits (did you mean "),
    ("--count", "--count needs a value"),
    ("--count many", "--count is 'many'; it must be a whole number"),
    ("--limit x", "--limit is 'x'; it must be None or a number"),
    ("--sizes 8 a", "--sizes is '8', 'a'; it must be one or more whole numbers"),
    ("--bounds 0 a", "--bounds is '0', 'a'; it must be two numbers"),
    ("--ids first", "--ids is 'first'; it must be None, one or more whole numbers, auto or all"),
    ("--scale x", "--scale is 'x'; it must be a number or pairs of a name and a number"),
    ("--parameters.joint-limit x", "--parameters.joint-limit is 'x'; it must be a number"),
    (
        "--engine warped",
        "--engine is 'warped' (did you mean 'warp'?); it must be one of mujoco, warp",
    ),
    ("--stop-at-return 4", 'there is no flag --stop-at-return; write --until "mean_return>=VALUE"'),
    ("--video maybe", "--video is 'maybe'; it must be True or False"),
]


@pytest.mark.parametrize(("command", "message"), REJECTED, ids=[r[0] for r in REJECTED])
def test_what_tyro_rejects_is_one_line_that_names_flag_value_and_kind(command, message, capsys):
    with pytest.raises(ConfigError) as error:
        parse_flags("program", Flags(), command.split())
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("; `program --help` lists all flags")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "parameter"),
    [
        ("--env.commands.velocity.heading-stiffness 1", "heading_stiffness"),
        ("--env.observations.critic.joint-pos.biased True", "biased"),
    ],
)
def test_a_parameter_that_the_task_leaves_at_its_default_has_a_message(command, parameter):
    with pytest.raises(ConfigError, match=f"the task leaves {parameter} at its default"):
        parse_flags("train", default_config("go1-velocity-flat"), command.split())
