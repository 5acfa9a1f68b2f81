// One rank's shared memory: anonymous, of a fixed size, mapped here; pages are used as they are committed.
#pragma once

#include <cstddef>

#include "bootstrap/local_socket.h"

namespace perseus::shm {

class Segment {
 public:
  // New memory of `bytes` address space. Throws Error(unavailable).
  static Segment create(std::size_t bytes);

  // Maps a peer's memory. Throws Error: unavailable when there is no address space, transport when it is not what
  // `create` makes (its size is fixed, so that no access inside it can ever fail).
  static Segment adopt(UniqueFd fd, std::size_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Takes pages from the system now, or returns false; touching them later cannot fail then.
  bool commit(std::size_t offset, std::size_t bytes);
  // Gives pages back; they read as zero afterwards.
  void decommit(std::size_t offset, std::size_t bytes);

  // In a forked child, of memory that create() made: every mapping of it, at whatever place, becomes copy-on-write.
  // Writes of the child from then on reach no other process.
  void make_private() const;

 private:
  Segment(UniqueFd fd, std::size_t bytes);

  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace perseus::shm
