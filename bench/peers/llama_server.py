"""llama.cpp's own server out of the wheel `xllamacpp`, where compiling llama-server takes too long. Blocks.

The same code and routes; the wheel is built for AVX2, so on CPUs with more than that it is slower than a build of one's
own. Runs in an environment that has xllamacpp and nothing of this repository: python llama_server.py FILE.gguf PORT
"""

import signal
import sys

import xllamacpp


def main() -> None:
    path, port = sys.argv[1], int(sys.argv[2])
    slots, context = int(sys.argv[3]), int(sys.argv[4])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.model_alias = {"smollm2"}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 2
    parameters.n_parallel, parameters.n_ctx = slots, context
    parameters.ui = False
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
