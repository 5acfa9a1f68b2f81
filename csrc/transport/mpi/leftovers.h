// What MPIs leave on a host when a rank is killed.
#pragma once

namespace perseus::mpi {

// Takes away the names of the memory in /dev/shm that MPICH shares among the ranks of a host: the memory stays for
// those who have it, and goes with the last of them, however they end. For when all ranks have come out of MPI_Init:
// MPICH opens it there, and never again. (Open MPI opens memory when a peer is first spoken to, and its daemon removes
// the files.)
void unlink_shared_memory();

}  // namespace perseus::mpi
