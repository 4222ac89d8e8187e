#!/bin/sh
# Starts a vLLM server on the port given: serve.sh PORT [MODEL [OPTION...]]. `make vllm` makes the environment that it runs in.
here=$(dirname "$0")
port=$1
python=${VLLM_PYTHON:-$here/../../.venv-vllm/bin/python}
model=${2:-${CONDUCTOR_CACHE:-$HOME/.cache/conductor}/smollm2}
shift $(($# > 1 ? 2 : 1))

# the routes for pause, abort and weights; no network; one thread, for the trainer needs the other
export VLLM_SERVER_DEV_MODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export PYTHONPATH="$here/../.."
export OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1

exec "$python" -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port "$port" --model "$model" --dtype float32 \
    --worker-extension-cls backends.engines._vllm_worker.ConductorWorker --max-model-len 512 --max-num-seqs 64 --enable-scale-out --enforce-eager --disable-uvicorn-access-log "$@"
