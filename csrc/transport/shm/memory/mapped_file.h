// Finds the file in memory behind an address, such as that of a tensor that torch shares with other processes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bootstrap/local/local_socket.h"

namespace perseus::shm {

struct MappedFile {
  UniqueFd fd;
  std::uint64_t offset = 0;    // of `begin` in the file
  std::byte* begin = nullptr;  // begins at a page
  std::size_t bytes = 0;       // from `begin` to the end of the range
};

// Returns the file that a writable shared mapping shows at [data, data + bytes). Only files in memory are returned
// (tmpfs, memfd, huge pages). Throws Error(unavailable) that says why there is none.
MappedFile find_mapped_file(const void* data, std::size_t bytes);

}  // namespace perseus::shm
