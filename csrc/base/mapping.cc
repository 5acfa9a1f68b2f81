#include "base/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace perseus {

namespace {

bool begins_at_page(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) == 0;
}

// Restores the memory at `place`, which is unmapped if mapping over it failed half way.
void restore(void* place, const void* memory, std::size_t bytes) {
  void* again =
      mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (again != MAP_FAILED) std::memcpy(place, memory, bytes);
}

}  // namespace

Status show_at(void* place, void* memory, std::size_t bytes) {
  // The arena aligns to 4 KiB, and some systems have larger pages.
  if (!begins_at_page(place) || !begins_at_page(memory)) {
    return {ErrorKind::unavailable, "memory that does not begin at a page of the system has no second place"};
  }
  std::memcpy(memory, place, bytes);
  // An old size of 0 asks for a second mapping of shared pages.
  if (mremap(memory, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place) return {};
  const auto* const why = std::strerror(errno);
  restore(place, memory, bytes);
  return {ErrorKind::unavailable, std::string("the system does not map shared memory a second time: ") + why};
}

}  // namespace perseus
