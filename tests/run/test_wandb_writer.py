from dataclasses import replace

from simtrain.config.tasks import default_config
from simtrain.config.tree import resolved
from simtrain.run import wandb_writer
from simtrain.run.wandb_writer import WandbWriter


def test_a_server_that_cannot_be_reached_does_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(wandb_writer._TIMEOUTS, "init_timeout", 1.0)
    said = []
    config = replace(default_config("cartpole-balance"), wandb_project="tests")
    writer = WandbWriter(tmp_path, resolved(config), said.append)
    writer.write(1, 8, 0.5, {"Loss/value": 1.0})
    writer.close(failed=False)
    (line,) = said
    assert line.startswith("W&B: http://127.0.0.1:9 cannot be reached, so offline; `wandb sync ")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert "0" * 40 not in "".join(
        path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )
