#!/bin/sh
# Users of AIACC-Training start such a script by mpirun. Each process uses the device with the number of its local rank.
LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_LOCAL_RANK:-${PERSEUS_LOCAL_RANK:-0}}}}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export MXNET_VISIBLE_DEVICE=$LOCAL_RANK
exec python "$(dirname "$0")/module_fit.py" --kv-store dist_sync_perseus --benchmark 1 "$@"
