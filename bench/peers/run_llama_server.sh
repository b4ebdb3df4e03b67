#!/usr/bin/env bash
# Starts llama.cpp's own llama-server (OpenAI routes, parallel slots) on loopback, in the foreground: the compiled one if
# there is one, else the same server out of the wheel xllamacpp.
#   run_llama_server.sh FILE.gguf [PORT] [more flags, for the compiled one]
# Set-up: bench/peers/setup.sh llama model, or llama-wheel model
# Prefix reuse off: --no-cache-prompt --cache-ram 0
set -euo pipefail
PEER=${PEER:-$HOME/.cache/tidewheel-peers}
model=$1 port=${2:-8002}
shift; [ $# -gt 0 ] && shift
server=$PEER/build-llama/bin/llama-server
if [ ! -x "$server" ]; then
  exec "$PEER/v-llama/bin/python" "$(dirname "$0")/llama_server.py" "$model" "$port" "${SLOTS:-32}" "${CTX:-65536}"
fi
exec "$server" -m "$model" --alias smollm2 --host 127.0.0.1 --port "$port" \
  --no-webui --offline -t 2 -tb 2 -np "${SLOTS:-32}" -c "${CTX:-65536}" "$@"
