"""Run llama.cpp's llama-server, from the package xllamacpp, until a signal or the end of standard input.

The package embeds the server: creating its `Server` loads the model and serves HTTP from threads of this process.

    python -m tests.engine.serve walk.gguf --port 18100 --ctx 8192
    python -m tests.engine.serve echo.gguf --port 18101 --ctx 16384 --parallel 4 --unified
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

import xllamacpp

READY = "ready "


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; counts are in tokens, times in seconds."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.serve", description=__doc__)
    add = parser.add_argument
    add("model", type=Path, help="GGUF file")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free port")
    add("--ctx", type=int, default=8192, help="0: what the model declares")
    add("--parallel", type=int, default=1, help="slots, which share --ctx")
    add("--unified", action="store_true", help="one KV cache for all slots")
    add("--threads", type=int, default=1)
    add("--batch", type=int, default=2048, help="tokens per prompt step")
    add("--alias", help="model id to report")
    add("--api-key", action="append", default=[])
    add("--embeddings", action="store_true", help="give vectors, the mean of those of all tokens, and no answers")
    add("--cache-ram", type=int, default=256, help="MiB of prompts that are kept in memory beside the slots")
    add("--slot-save-path", default="", help="folder, with a slash at its end, for slots that are saved")
    add("--stay-with-parent", action="store_true", help="end when standard input ends")
    return parser.parse_args(argv)


def parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    """The options in llama.cpp's own terms."""
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model.resolve())
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx
    params.n_parallel = options.parallel
    params.kv_unified = options.unified
    params.n_batch = options.batch
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    if options.alias:
        params.model_alias = {options.alias}
    params.api_keys = options.api_key
    params.ctx_shift = False
    params.cache_ram_mib = options.cache_ram
    params.slot_save_path = options.slot_save_path
    params.sampling.temp = 0.0
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.fit_params = False
    params.ui = False
    params.verbosity = 1
    if options.embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params


def main(argv: list[str] | None = None) -> None:
    """Serve, and say on standard output when and where."""
    options = parse(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))  # open connections are not waited for
    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)  # the interpreter would wait for threads that the failed server left behind
    sys.stdout.write(f"{READY}{server.listening_address}\n")
    sys.stdout.flush()
    if options.stay_with_parent:
        sys.stdin.buffer.read()
        os._exit(0)
    threading.Event().wait()


if __name__ == "__main__":
    main()
