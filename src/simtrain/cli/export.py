"""``uv run export <run or checkpoint>``: a trained policy as ONNX and TorchScript."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simtrain.cli.exits import DONE, interruptible
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.errors import ConfigError
from simtrain.ppo_cfg import Flag


@dataclass
class ExportConfig:
    """Write a trained policy as files for a robot, with what its program needs to know."""

    output: Path | None = None
    """Folder for policy.onnx, policy.pt and policy.json; None for <run>/exported."""
    formats: tuple[Literal["onnx", "torchscript"], ...] = ("onnx", "torchscript")
    """What to write besides policy.json."""
    with_changes: Flag = False
    """Export although config.yaml is not what the policy was trained with."""


def export(arguments: Sequence[str]) -> int:
    """Parse the command line and export a policy; the exit code."""
    paths, flags = split_paths(arguments)
    config = parse_flags("export <run or checkpoint>", ExportConfig(), flags)
    if len(paths) != 1:
        text = "name one run directory or checkpoint: `uv run export <run or checkpoint>`"
        raise ConfigError(f"{text}, not {len(paths)}" if paths else text)
    if not config.formats:
        raise ConfigError("--formats needs one or more of onnx, torchscript")

    # Only now, so that help and mistakes above do not wait for torch and MuJoCo.
    from simtrain.run.directory import check_folder
    from simtrain.training.saved_policy import open_policy

    saved = open_policy(paths[0])
    if saved.changed and not config.with_changes:
        raise ConfigError(f"{saved.difference}; --with-changes True exports it all the same")
    folder = config.output or saved.run / "exported"
    check_folder(folder, "--output")

    from simtrain.training.export import export_policy

    with interruptible():
        exported = export_policy(saved, folder, config.formats)
    of = exported.interface
    print(f"policy:   {saved.config.task}, iteration {saved.iteration}")
    sizes = f"{of.observation_size} observations, {of.action_size} actions"
    print(f"          {sizes}, every {of.control_period:g} s")
    for path in exported.files:
        print(f"written:  {path}")
    print(f"checked:  actions differ by at most {exported.difference:.1e} from the policy's")
    return DONE
