// One rank's sealed shared memory of a fixed size, mapped in this process. Pages are allocated by commit().
#pragma once

#include <cstddef>
#include <string>

#include "bootstrap/local/local_socket.h"

namespace perseus::shm {

// Returns `bytes` in MiB, for error texts.
std::string size_text(std::size_t bytes);

class Segment {
 public:
  // Makes a segment of `bytes` of address space. Throws Error(unavailable).
  static Segment create(std::size_t bytes);

  // Maps a peer's segment. Throws Error(unavailable) if there is no address space, and Error(transport) if create() has
  // not made the memory. Its sealed size guarantees that no access inside it can fail.
  static Segment adopt(UniqueFd fd, std::size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Allocates pages now, so that touching them later cannot fail. Returns false if the system has none.
  bool commit(std::size_t offset, std::size_t bytes);
  // Frees pages; they read as zero afterwards.
  void decommit(std::size_t offset, std::size_t bytes);

  // Makes the mapping of memory from create() copy-on-write. Call it in a forked child, whose later writes then reach
  // no other process.
  void make_private() const;

 private:
  Segment(UniqueFd fd, std::size_t bytes);

  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace perseus::shm
