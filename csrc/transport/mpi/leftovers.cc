#include "transport/mpi/leftovers.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace perseus::mpi {

void unlink_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find("/dev/shm/mpich_");
    if (at == std::string::npos || line.ends_with("(deleted)")) continue;
    // Another rank of the host may have unlinked the file already.
    [[maybe_unused]] const auto done = unlink(line.c_str() + at);
  }
}

}  // namespace perseus::mpi
