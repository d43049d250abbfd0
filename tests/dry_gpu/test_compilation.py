"""Kernels that compile for GPUs, and what the first run of a model compiles."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warp

from simtrain.sim import warp_kernels

RUN = """
import json
from pathlib import Path

import mujoco
import warp

warp.config.optimization_level = 0
warp.init()
from simtrain.sim import EngineCfg
from simtrain.sim.warp_compile import compilation_announced
from simtrain.sim.warp_engine import WarpEngine

XML = "<mujoco><worldbody><body><joint/><geom size='.1' pos='0 0 1'/></body></worldbody></mujoco>"
CACHE = Path(warp.config.kernel_cache_dir)

def compiled():
    # A module is built in a folder beside the others first, and then renamed.
    return len(list(CACHE.glob("*/*.o"))), CACHE.stat().st_mtime_ns if CACHE.exists() else 0

said, counts = [], [compiled()]
with compilation_announced(said.append):
    engine = WarpEngine(EngineCfg("warp"), mujoco.MjModel.from_xml_string(XML), 2, None, 1, 1)
counts.append(compiled())
engine.step(3)
engine.reset()
engine.forward()
counts.append(compiled())
print(json.dumps({"said": said, "counts": counts}))
"""


def test_own_kernels_compile_for_gpus(tmp_path) -> None:
    """Warp's compiler for CUDA needs no GPU."""
    options = {"arch": [80, 90, 120], "module_dir": tmp_path, "use_ptx": False}
    paths = warp.compile_aot_module(warp_kernels, **options)
    names = [Path(path).suffixes[-2:] for path in paths]
    assert names == [[f".sm{arch}", ".cubin"] for arch in (80, 90, 120)]
    assert all(Path(path).stat().st_size for path in paths)


@pytest.mark.slow
def test_the_first_run_compiles_all_before_it_steps_and_the_second_nothing(tmp_path) -> None:
    def run() -> dict[str, Any]:
        result = subprocess.run(
            [sys.executable, "-c", RUN],
            env={**os.environ, "WARP_CACHE_PATH": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(result.stdout.splitlines()[-1])

    first, second = run(), run()
    before, built, stepped = first["counts"]
    assert before[0] == 0
    assert stepped == built
    assert first["said"][-1].startswith(f"compiled the kernels, {built[0]} modules, in ")
    assert second["counts"] == [built] * 3
    assert second["said"] == []
