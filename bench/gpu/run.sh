#!/usr/bin/env bash
# Everything that has to be shown on a real GPU, in under 8 minutes on one H200-class card; JSON lines on stdout.
#   bench/gpu/run.sh [PYTHON] > docs/gpu.jsonl
# Exit code 0: the kernels are right and every part ran. Peaks of other cards: --peak-bandwidth, --peak-flops (see --help).
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-${VENV:-.venv}/bin/python}
failed=()
part() {
  local seconds=$1 module=$2
  timeout "$seconds" "$python" -m "$module" || failed+=("$module")
}
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader >&2
part 90 bench.gpu.correctness
part 120 bench.gpu.attention
part 240 bench.gpu.streams
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
