// Removes what MPIs leave on a host if a rank is killed.
#pragma once

namespace perseus::mpi {

// Unlinks the files in /dev/shm by which MPICH shares memory among the ranks of a host. Processes that have mapped the
// memory keep it, and the kernel frees it when the last of them ends, however it ends. Call it after all ranks have
// returned from MPI_Init: MPICH opens the files only there. (Open MPI opens memory at the first message to a peer, and
// its daemon removes the files.)
void unlink_shared_memory();

}  // namespace perseus::mpi
