"""A run directory or checkpoint becomes a policy again, or a message that says why not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from simtrain.cli.evaluate import evaluate
from simtrain.cli.export import export
from simtrain.config.tasks import default_config
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import read_checkpoint
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import find_policy, open_policy


def test_a_saved_policy_acts_by_the_trained_mean_of_its_actions(trained_run: Path) -> None:
    assert open_policy(trained_run / "model_1.pt").iteration == 1
    saved = open_policy(trained_run)
    assert saved.iteration == 2
    assert saved.checkpoint == trained_run / "model_2.pt"
    assert saved.config.env.rewards["upright"].weight == 3.0
    env = Env(evaluation_task(saved.config.env), 4, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    state = saved.content["actor_state_dict"]
    obs = env.get_observations()
    x = torch.cat([obs[group] for group in saved.config.ppo.actor.obs_groups], dim=1)
    x = (x - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 1e-2)
    layers = sorted(int(name.split(".")[1]) for name in state if name.endswith("weight"))
    for layer in layers:
        x = x @ state[f"mlp.{layer}.weight"].T + state[f"mlp.{layer}.bias"]
        if layer != layers[-1]:
            x = getattr(torch.nn.functional, saved.config.ppo.actor.activation)(x)
    torch.testing.assert_close(policy(obs), x)


def test_what_is_no_run_is_told(tmp_path: Path, trained_run: Path) -> None:
    for path, problem in {
        tmp_path / "nowhere": "there is no run, checkpoint or task",
        tmp_path: "no run directory",
        trained_run.parents[1]: f"newest run below it is {trained_run}",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            find_policy(path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        find_policy(tmp_path)


def test_damaged_and_foreign_checkpoints_are_told(tmp_path: Path, trained_run: Path) -> None:
    whole = (trained_run / "model_2.pt").read_bytes()
    path = tmp_path / "model_2.pt"
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a checkpoint, or it is damaged"):
            read_checkpoint(path)
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(ConfigError, match="no checkpoint of simtrain"):
        read_checkpoint(path)


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must not run",))


@pytest.mark.parametrize("save", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_a_checkpoint_that_would_run_code_is_refused(
    save: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model_1.pt"
    save(_Evil(), path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"could run code|not a checkpoint"):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


def test_a_checkpoint_of_another_task_or_network_is_told(tmp_path: Path, trained_run: Path) -> None:
    config = (trained_run / "config.yaml").read_text()
    checkpoint = tmp_path / "model_2.pt"
    checkpoint.write_bytes((trained_run / "model_2.pt").read_bytes())
    with pytest.raises(ConfigError, match="used from its run directory"):
        open_policy(checkpoint)
    (tmp_path / "config.yaml").write_text(config.replace("balance", "swingup"))
    with pytest.raises(ConfigError, match="is of the task 'cartpole-balance', but lies in a run"):
        open_policy(checkpoint)
    (tmp_path / "config.yaml").write_text("[1, 2")
    with pytest.raises(ConfigError, match="is damaged"):
        open_policy(checkpoint)

    saved = open_policy(trained_run)
    saved.config.ppo.actor.hidden_dims = (7,)
    env = Env(saved.config.env, 1, EngineCfg(threads=1))
    with pytest.raises(ConfigError, match=r"another network.*mlp.0.bias"):
        saved.policy(env.get_observations(), env.num_actions)


def test_an_undisturbed_task_has_no_noise_pushes_and_curricula() -> None:
    task = default_config("go1-velocity-rough").env
    calm = evaluation_task(task)
    assert {"push", "reset_base"} <= task.events.keys()
    assert calm.events.keys() & {"push", "reset_base"} == {"reset_base"}
    noise = [
        [term.noise for group in cfg.observations.values() for term in group.values()]
        for cfg in (task, calm)
    ]
    assert any(noise[0])
    assert not any(noise[1])
    assert task.curricula
    assert not calm.curricula
    assert calm.terrain.max_initial_level is None


def _with_config(trained_run: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a run's checkpoint beside its configuration with changes."""
    config = (trained_run / "config.yaml").read_text()
    for before, after in changes:
        assert before in config
        config = config.replace(before, after, 1)
    (folder / "config.yaml").write_text(config)
    (folder / "model_2.pt").write_bytes((trained_run / "model_2.pt").read_bytes())
    return folder


def test_a_changed_configuration_is_told_and_not_exported_unless_asked_for(
    tmp_path: Path, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not open_policy(trained_run).changed
    moved = _with_config(trained_run, tmp_path, ("save_interval: 1", "save_interval: 7"))
    assert not open_policy(moved).changed  # it does not decide the results
    path = str(_with_config(trained_run, tmp_path, ("weight: 3.0", "weight: 3.1")))
    with pytest.raises(ConfigError, match=r"trained with; --with-changes True exports it all the"):
        export([path])
    assert export([path, "--with-changes", "--formats", "pt2"]) == 0
    capsys.readouterr()
    assert evaluate([path, "--episodes", "1", "--device", "cpu"]) == 0
    warning = f"{tmp_path}/config.yaml is not the configuration that model_2.pt was trained with"
    assert f"warning: {warning}" in capsys.readouterr().err


def test_a_checkpoint_of_before_has_no_digest_and_is_taken(
    tmp_path: Path, trained_run: Path
) -> None:
    path = _with_config(trained_run, tmp_path, ("weight: 3.0", "weight: 3.1")) / "model_2.pt"
    content = torch.load(path, weights_only=True)
    assert content["infos"].pop("config_sha256")
    torch.save(content, path)
    assert not open_policy(path).changed


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("timestep: ", "timestep: -1 # ", "--env.timestep is -1; it must be 1e-06 or more"),
        ("decimation: ", "decimation: 1000000000 # ", "--env.decimation is 1000000000; it must"),
        ("  num_envs: 8", "  num_envs: many", "--num-envs is 'many'; it must be a whole number"),
        ("weight: 3.0", "weight: '3.0'", "upright.weight is '3.0'; it must be a number"),
        ("pole_joints: hinge", "pole_joints: 5", "pole_joints cannot be 5"),
        ("  ppo:", "  ppo: 5\n  other:", "a PpoCfg cannot be 5"),
        ("config:", "config: " + "[" * 10**4, "is damaged, or not the configuration of a run"),
        ("config:", "x: &x [1, 2]\ny: *x\nconfig:", "it refers to its own parts"),
    ],
)
def test_a_configuration_is_checked_as_that_of_a_training(
    before: str, after: str, message: str, tmp_path: Path, trained_run: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        open_policy(_with_config(trained_run, tmp_path, (before, after)))
    assert message in str(error.value)
    assert f"{tmp_path}/config.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actor_state_dict": {"mlp.0.bias": torch.full((3,), torch.nan)}}, "not finite numbers"),
        ({"actor_state_dict": {"mlp.0.bias": 5}}, "is damaged"),
        ({"actor_state_dict": [1, 2]}, "is damaged"),
        ({"iter": "x"}, "is damaged"),
    ],
)
def test_a_crafted_checkpoint_is_told(
    change: dict[str, object], message: str, tmp_path: Path, trained_run: Path
) -> None:
    path = _with_config(trained_run, tmp_path) / "model_2.pt"
    torch.save(torch.load(path, weights_only=True) | change, path)
    with pytest.raises(ConfigError, match=message):
        open_policy(path)


def test_a_checkpoint_under_the_name_of_another_is_told(tmp_path: Path, trained_run: Path) -> None:
    path = _with_config(trained_run, tmp_path) / "model_2.pt"
    path.rename(tmp_path / "model_7.pt")
    with pytest.raises(ConfigError, match=r"model_7.pt is damaged: it is model_2.pt, by what it"):
        open_policy(tmp_path)
    (tmp_path / "model_7.pt").rename(tmp_path / "chosen.pt")
    assert open_policy(tmp_path / "chosen.pt").iteration == 2
