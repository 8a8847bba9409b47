#!/usr/bin/env bash
# One node of a training with torchrun; start it on every node, with the same arguments:
#
#   deploy/torchrun/train.sh NODES HEAD[:PORT] SCRIPT [ARGUMENT...]
#
#   NODES   how many nodes there are
#   HEAD    the node on which the ranks meet; PORT is 29500 unless given
#
# GRADWATCH_ENDPOINT says where the aggregator listens; without it HEAD, port 5555.
# GRADWATCH_RUN is the name of the run, and GRADWATCH_KEYS the key file, if it asks for one.
# NPROC is how many processes to start here, unless it is one for each GPU (without GPUs: CPU).
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 NODES HEAD[:PORT] SCRIPT [ARGUMENT...]" >&2
    exit 2
fi
nodes=$1 head=$2
shift 2
[[ $head == *:* ]] || head=$head:29500

export GRADWATCH_ENDPOINT=${GRADWATCH_ENDPOINT:-tcp://${head%:*}:5555}
export GRADWATCH_RUN=${GRADWATCH_RUN:?is the name of the run, the same on all nodes}

# A restart by torchrun (--max-restarts) continues the run as its next attempt.
exec torchrun \
    --nnodes "$nodes" \
    --nproc-per-node "${NPROC:-auto}" \
    --rdzv-id "$GRADWATCH_RUN" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$head" \
    --max-restarts 3 \
    "$@"
