import pytest
from tiny_task import tiny_task

from simtrain import MetricTermCfg, mdp
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.training.features.conditions import check_evaluation_flags, stop_condition

TASK = tiny_task(metrics={"error": MetricTermCfg(mdp.is_alive)})
NAN = float("nan")


def config(until: str | None, **values) -> TrainConfig:
    return TrainConfig(task="tiny", env=TASK, until=until, **values)


@pytest.mark.parametrize(
    ("until", "metrics", "holds"),
    [
        ("Train/mean_reward>=45", {"Train/mean_reward": 45.0}, True),
        ("Train/mean_reward>=45", {"Train/mean_reward": 44.9}, False),
        ("Train/mean_reward>=45", {"Train/mean_reward": NAN}, False),
        ("Train/mean_reward>=45", {}, False),
        ("error < 0.2", {"Eval/error": 0.19}, True),
        ("Eval/error<0.2", {"Eval/error": 0.2}, False),
        ("error<0.2 and fell<=0.5", {"Eval/error": 0.1, "Eval/failure_rate": 0.5}, True),
        ("error<0.2 and fell<=0.5", {"Eval/error": 0.1, "Eval/failure_rate": 0.6}, False),
        ("error<0.2 and fell<=0.5", {"Eval/error": 0.1}, False),
        ("error<0.2 and fell<=0.5 or Loss/kl<-1", {"Eval/error": 9.0, "Loss/kl": -2.0}, True),
        ("Loss/kl<-1 or error<0.2 and fell<=0.5", {"Eval/error": 0.1, "Loss/kl": 0.0}, False),
        # Short episodes end first: means over episodes count once all environments have had one.
        ("Train/mean_reward>1", {"Train/mean_reward": 2.0, "Train/finished_envs": 0.9}, False),
        ("Episode_Reward/up>1", {"Episode_Reward/up": 2.0, "Train/finished_envs": 0.9}, False),
        ("Train/mean_reward>1", {"Train/mean_reward": 2.0, "Train/finished_envs": 1.0}, True),
        ("Loss/kl>1", {"Loss/kl": 2.0, "Train/finished_envs": 0.1}, True),
    ],
)
def test_a_condition_holds_for_the_metrics_of_an_iteration(until, metrics, holds):
    assert stop_condition(config(until)).holds(metrics) is holds


def test_a_condition_is_shown_by_the_names_of_its_metrics():
    shown = str(stop_condition(config("Eval/error<0.20 and fell <= 5e-1 or Train/mean_reward>10")))
    assert shown == "error<0.2 and failure_rate<=0.5 or Train/mean_reward>10"
    assert stop_condition(config(None)) is None


def test_a_metric_of_the_task_comes_before_the_short_name_of_another():
    task = tiny_task(metrics={"fell": MetricTermCfg(mdp.is_alive)})
    condition = stop_condition(TrainConfig(task="tiny", env=task, until="fell>1"))
    assert condition.comparisons[0].tag == "Eval/fell"


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("Eval/eror>1", "no metric 'Eval/eror' .did you mean 'Eval/error'"),
        ("Episode_Reward/aliv>1", "no metric 'Episode_Reward/aliv' .did you mean 'Episode_Rew"),
        ("Sim/overflow>=0.1", "logs no metric 'Sim/overflow'"),  # that of the Warp engine alone
        ("Loss/kl<1 and error<1", "needs evaluations; add --eval-interval"),
    ],
)
def test_a_condition_on_what_is_never_logged_is_refused(until, message):
    with pytest.raises(ConfigError, match=message):
        check_evaluation_flags(config(until, engine="mujoco"))


def test_a_condition_on_what_is_logged_is_taken():
    for engine in ("auto", "warp"):
        check_evaluation_flags(config("Sim/overflow>=0.1", engine=engine))
    check_evaluation_flags(config("Loss/kl<1"))
    check_evaluation_flags(config("error<1", eval_interval=1))
