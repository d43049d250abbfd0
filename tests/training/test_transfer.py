"""A new run that begins with another's networks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_training import ENVS, STEPS, make_context, run_for, tiny_config, tiny_trainer

from simtrain import ActorCfg, CriticCfg, ObservationTermCfg, mdp
from simtrain.cli.train import train
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import save_model
from simtrain.training.loop import Trainer
from simtrain.training.transfer import init_networks, read_networks


@pytest.fixture(scope="module")
def trained() -> Trainer:
    trainer = tiny_trainer()
    run_for(trainer, 2)
    return trainer


@pytest.fixture
def checkpoint(trained, tmp_path) -> Path:
    save_model(tmp_path / "model_2.pt", 2, trained.ppo.save(), {})
    return tmp_path


def begin(path: Path, config=None, **flags) -> tuple[Trainer, list[str]]:
    """A new training that begins with a checkpoint, and what it tells."""
    config = replace(config or tiny_config(), init_from=str(path), seed=7, **flags)
    trainer = tiny_trainer(config)
    context = make_context(path, config)
    init_networks(context, trainer.ppo)
    return trainer, context.console.lines  # type: ignore[attr-defined]


def same(mine: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    states = mine.state_dict(), theirs.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_a_run_begins_with_networks_and_normalizers_but_not_the_optimizer(checkpoint, trained):
    trainer, lines = begin(checkpoint)
    assert trainer.ppo.actor.state_dict()["obs_normalizer.count"] == 2 * ENVS * STEPS
    assert same(trainer.ppo.actor, trained.ppo.actor)
    assert same(trainer.ppo.critic, trained.ppo.critic)
    assert not trainer.ppo.state()["optimizer_state_dict"]["state"][0]["exp_avg"].any()
    assert trainer.iteration == 0
    assert lines == [f"--init-from: 17 tensors of the actor and critic in {checkpoint}/model_2.pt"]
    run_for(trainer, 1)
    trainer, _ = begin(checkpoint, init_only="critic")
    assert same(trainer.ppo.critic, trained.ppo.critic)
    assert not same(trainer.ppo.actor, trained.ppo.actor)


def test_of_a_changed_task_what_fits_is_taken_and_the_rest_is_told(checkpoint, trained):
    joint = {"joints": "left_slide"}
    terms = {
        "position": ObservationTermCfg(mdp.joint_pos, **joint),
        "velocity": ObservationTermCfg(mdp.joint_vel, **joint),
    }
    small = {"hidden_dims": (8, 8)}
    config = tiny_config(observations={"actor": terms})
    old = tiny_config()
    old.ppo = replace(old.ppo, actor=ActorCfg(**small), critic=CriticCfg(**small))
    source = tiny_trainer(old)
    run_for(source, 1)
    save_model(checkpoint / "model_2.pt", 2, source.ppo.save(), {})
    config.ppo = old.ppo
    trainer, lines = begin(checkpoint, config)
    mine, theirs = trainer.ppo.actor.state_dict(), source.ppo.actor.state_dict()
    assert torch.equal(mine["mlp.2.weight"], theirs["mlp.2.weight"])
    # A count without its means would hold them where they are.
    assert mine["obs_normalizer.count"] == 0
    assert lines[1:] == [
        f"--init-from: {network} {name} is {shape} there, {here} here: left out"
        for network in ("actor", "critic")
        for name, shape, here in (
            ("obs_normalizer", (1, 1), (1, 2)),
            ("mlp.0.weight", (8, 1), (8, 2)),
        )
    ]


def test_networks_that_do_not_fit_at_all_are_refused(checkpoint):
    config = tiny_config()
    config.ppo = replace(config.ppo, actor=ActorCfg((5,)), critic=CriticCfg((5,)))
    config.ppo.actor.obs_normalization = config.ppo.critic.obs_normalization = True
    with pytest.raises(ConfigError, match=r"no layer of .*model_2.pt fits the networks here: act"):
        begin(checkpoint, config)


@pytest.mark.parametrize("version", [2, 3])
def test_checkpoints_of_older_versions_of_rsl_rl_are_taken(version, trained, tmp_path):
    networks = {"actor": trained.ppo.actor, "critic": trained.ppo.critic}
    content: dict[str, dict[str, torch.Tensor]] = {"model_state_dict": {}}
    for network, module in networks.items():
        norm = {"actor": "obs_norm", "critic": "privileged_obs_norm"}[network]
        for name, tensor in module.state_dict().items():
            module, _, rest = name.partition(".")
            if module == "mlp":
                content["model_state_dict"][f"{network}.{rest}"] = tensor
            elif module == "distribution":
                content["model_state_dict"]["std"] = tensor
            elif version == 2:
                content.setdefault(f"{norm}_state_dict", {})[rest] = tensor
            else:
                content["model_state_dict"][f"{network}_{name}"] = tensor
    torch.save({**content, "optimizer_state_dict": {}, "iter": 5, "infos": None}, tmp_path / "x.pt")
    trainer, lines = begin(tmp_path / "x.pt")
    assert same(trainer.ppo.actor, trained.ppo.actor)
    assert same(trainer.ppo.critic, trained.ppo.critic)
    assert len(lines) == 1


def test_other_files_are_refused(trained, tmp_path):
    broken = trained.ppo.save()
    broken["critic_state_dict"]["mlp.0.bias"] = torch.full((8,), torch.nan)
    for content, problem in (
        (broken, r"the critic in .* has parameters that are not finite"),
        ({"iter": 3, "actor_state_dict": {}}, "with the networks of a policy: no actor or critic"),
        ({"actor_state_dict": {"mlp.0.bias": 3}}, "is damaged: its actor_state_dict"),
    ):
        torch.save(content, tmp_path / "model_3.pt")
        with pytest.raises(ConfigError, match=problem):
            read_networks(str(tmp_path))


def test_a_run_that_began_with_another_is_resumed_without_it(
    trained_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    flags = "--gpu-ids None --cpu-threads 1 --num-envs 4 --num-steps-per-env 4 --max-iterations"
    one, two = (["cartpole-balance", *flags.split(), count] for count in "12")
    first = shutil.copytree(trained_run, tmp_path / "first")
    assert train([*one, "--init-from", "first"]) == 0
    assert "--init-from: 21 tensors of the actor and critic" in capsys.readouterr().out
    shutil.rmtree(first)
    with pytest.raises(ConfigError, match="--init-from is for new runs"):
        train([*two, "--resume", "latest", "--init-from", "other"])
    assert train([*two, "--resume", "latest"]) == 0
    assert "--init-from" not in capsys.readouterr().out
