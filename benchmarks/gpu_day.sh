#!/usr/bin/env bash
# What to ask a GPU host that has not run simtrain yet, in 25 minutes: checks, speed, time to skill.
#
#   bash benchmarks/gpu_day.sh [folder]                     # gpu-day/ by default
#   PYTHON=python3 bash benchmarks/gpu_day.sh [folder]      # where uv cannot be had
#
# It needs a GPU. Each step has a time limit, together 25 minutes, and the next one follows also if
# it fails. The folder has each step's output, results as JSON and pictures, the runs, machine.txt,
# and summary.txt with each step's exit code (124: out of time), seconds and command.
set -uo pipefail
cd "$(dirname "$0")/.."

folder=$(realpath -m "${1:-gpu-day}")
python=${PYTHON:-uv run python}
simtrain="$python -m simtrain.cli.start"
gpus=$($python -c 'import torch; print(torch.cuda.device_count())') ||
  { echo "'$python' cannot import torch: set PYTHON to a Python that can" >&2; exit 2; }
[ "$gpus" -gt 0 ] || {
  echo "no GPU is visible to torch; without one, the checks are: uv run pytest tests/gpu -n 0 -m slow" >&2
  exit 2
}
mkdir -p "$folder"

step() { # step <seconds> <name> <command...>
  local limit=$1 name=$2 start=$SECONDS code
  shift 2
  echo "== $name: $*"
  timeout --signal=INT --kill-after=30 "$limit" "$@" >"$folder/$name.txt" 2>&1
  code=$?
  printf '%-22s exit %3d  %4d s   %s\n' "$name" "$code" $((SECONDS - start)) "$*" |
    tee -a "$folder/summary.txt"
}

skill() { # skill <seconds> <task> <environments> <condition> [flags...]
  local limit=$1 task=$2 envs=$3 until=$4
  shift 4
  step "$limit" "$task-$envs" $simtrain benchmark "$task" --until "$until" --seeds 1 --eval-interval 10 \
    --num-envs "$envs" --gpu-ids 0 --log-root "$folder/runs" --json "$folder/$task-$envs.json" "$@"
}

{ nvidia-smi; $python -c 'import torch, warp; print(torch.__version__, warp.__version__)'; } \
  >"$folder/machine.txt" 2>&1

go1="lin_vel_error<=0.1 and ang_vel_error<=0.12 and fell<=0.02"
g1="lin_vel_error<=0.2 and ang_vel_error<=0.25 and fell<=0.05"
step 240 checks $python -m pytest tests/gpu -n 0 -q -rs
step 60 engine $python -m pytest -m gpu tests/sim -n 0 -q
step 180 speed $simtrain benchmark cartpole-balance go1-velocity-flat g1-velocity-flat \
  --num-envs 4096 16384 --gpu-ids 0 --json "$folder/speed.json"
step 60 speed-without-tf32 $simtrain benchmark go1-velocity-flat --tf32 False --num-envs 16384 \
  --gpu-ids 0 --compare "$folder/speed.json" --json "$folder/speed-without-tf32.json"
skill 120 go1-velocity-flat 4096 "$go1"
skill 120 go1-velocity-flat 16384 "$go1"
skill 300 g1-velocity-flat 4096 "$g1"
skill 300 g1-velocity-flat 16384 "$g1"
if [ "$gpus" -gt 1 ]; then
  step 120 two-ranks $simtrain benchmark go1-velocity-flat --num-envs 4096 --gpu-ids 0 1 --ranks 1 2 \
    --json "$folder/two-ranks.json"
fi
echo "$folder"
