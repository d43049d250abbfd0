import pytest
from tiny_task import tiny_task

from simtrain import MetricTermCfg, mdp
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.training.features.conditions import stop_conditions
from simtrain.training.features.evaluation import check_evaluation_flags

TASK = tiny_task(metrics={"error": MetricTermCfg(mdp.is_alive)})


def config(**values) -> TrainConfig:
    return TrainConfig(task="tiny", env=TASK, **values)


def holds(metrics, **values):
    held = [str(c) for c in stop_conditions(config(**values)) if c.holds(metrics)]
    return held[0] if held else None


def test_a_metric_reaches_or_exceeds_its_value():
    wanted = {"stop_at": (("Train/mean_reward", 45.0),)}
    assert holds({"Train/mean_reward": 44.9}, **wanted) is None
    assert holds({"Train/mean_reward": 45.0}, **wanted) == "--stop-at Train/mean_reward 45"
    assert holds({}, **wanted) is None
    assert holds({"Train/mean_reward": float("nan")}, **wanted) is None


def test_means_over_episodes_count_once_every_environment_has_finished_one():
    wanted = {"stop_at": (("Train/mean_reward", 45.0), ("Episode_Reward/up", 1.0))}
    metrics = {"Train/mean_reward": 50.0, "Episode_Reward/up": 2.0, "Train/finished_envs": 0.9}
    assert holds(metrics, **wanted) is None
    assert holds({**metrics, "Train/finished_envs": 1.0}, **wanted) is not None
    metrics["Train/mean_step_reward"] = 1.0  # of all steps, whichever episodes have ended
    assert holds(metrics, stop_at=(("Train/mean_step_reward", 1.0),)) is not None


def test_a_metric_falls_to_or_below_its_value():
    wanted = {"stop_below": (("Eval/error", 0.2),)}
    assert holds({"Eval/error": 0.21}, **wanted) is None
    assert holds({"Eval/error": 0.2}, **wanted) == "--stop-below Eval/error 0.2"
    assert holds({"Eval/error": float("nan")}, **wanted) is None


def test_any_of_several_conditions_is_enough():
    wanted = {"stop_at_return": 10.0, "stop_below": (("Loss/entropy", -1.0),)}
    assert holds({"Eval/mean_return": 11.0, "Loss/entropy": 0.0}, **wanted) == "--stop-at-return 10"
    assert holds({"Loss/entropy": -2.0}, **wanted) == "--stop-below Loss/entropy -1"


def test_a_metric_that_is_never_logged_is_told_with_the_nearest():
    for tag, near in (
        ("Eval/mean_retrun", "Eval/mean_return"),
        ("Eval/eror", "Eval/error"),
        ("Episode_Reward/aliv", "Episode_Reward/alive"),
    ):
        mistaken = config(eval_interval=1, stop_at=((tag, 1.0),))
        with pytest.raises(ConfigError, match=f"no metric '{tag}' .did you mean '{near}'"):
            check_evaluation_flags(mistaken, "mujoco")


def test_full_buffers_are_told_by_the_warp_engine_alone():
    wanted = config(stop_at=(("Sim/overflow", 0.1),))
    for engine in ("auto", "warp"):
        check_evaluation_flags(wanted, engine)
    with pytest.raises(ConfigError, match="logs no metric 'Sim/overflow'"):
        check_evaluation_flags(wanted, "mujoco")


@pytest.mark.parametrize(
    "values",
    [{"stop_at_return": 1.0}, {"stop_below": (("Eval/error", 1.0),)}, {"until": "error<1"}],
)
def test_a_condition_on_evaluations_needs_evaluations(values):
    check_evaluation_flags(config(eval_interval=1, **values), "mujoco")
    with pytest.raises(ConfigError, match=r"needs evaluations; add --eval-interval"):
        check_evaluation_flags(config(**values), "mujoco")


def test_until_needs_all_of_its_comparisons():
    wanted = {"until": "error<0.2 and fell <= 0.5 and mean_return>10"}
    good = {"Eval/error": 0.1, "Eval/failure_rate": 0.5, "Eval/mean_return": 11.0}
    text = '--until "error<0.2 and failure_rate<=0.5 and mean_return>10"'
    assert holds(good, **wanted) == text
    for bad in (
        {"Eval/error": 0.2},
        {"Eval/failure_rate": 0.51},
        {"Eval/mean_return": 10.0},
        {"Eval/mean_return": float("nan")},
    ):
        assert holds({**good, **bad}, **wanted) is None
    assert holds({"Eval/error": 0.1}, **wanted) is None


def test_a_metric_of_the_task_comes_before_the_short_name_of_another():
    task = tiny_task(metrics={"fell": MetricTermCfg(mdp.is_alive)})
    (condition,) = stop_conditions(TrainConfig(task="tiny", env=task, until="fell>1"))
    assert str(condition) == '--until "fell>1"'
