#!/bin/bash
# Two hosts with four ranks each, from an image of Apptainer: sbatch recipes/slurm/job.sh train.py
#SBATCH --job-name=perseus
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
set -eu

image=${PERSEUS_IMAGE:-perseus.sif}
test -e "$image" || { echo "$image is not there: apptainer build $image recipes/slurm/perseus.def" >&2; exit 2; }
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

# MPICH in the image speaks PMI 2 with Slurm's srun on the host. Apptainer's containers share the network, /tmp and the
# process ids of the host unless told otherwise, so the ranks of a host find each other.
srun --mpi=pmi2 apptainer exec "$image" python "$@"
