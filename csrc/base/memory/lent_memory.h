// Allocates the core's own memory that transports lend to libraries and peers while messages are in flight.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace perseus {

// Returns memory aligned to 64 bytes, filled with zeros on request, or nullptr if there is none.
void* allocate_lent(std::size_t bytes, bool zeroed = false) noexcept;

// Frees the memory, unless keep_lent_memory() was called since it was allocated.
void free_lent(void* memory) noexcept;

// Keeps all lent memory that exists now for the life of the process, because MPI or a peer may still read or write
// memory of an abandoned message. Thread-safe.
void keep_lent_memory() noexcept;

// Returns the number of blocks that were kept instead of freed.
std::size_t kept_lent_memory() noexcept;

template <class T>
struct LentAllocator {
  using value_type = T;

  LentAllocator() = default;
  template <class U>
  explicit(false) LentAllocator(const LentAllocator<U>&) {}

  T* allocate(std::size_t count) {
    auto* memory = count > static_cast<std::size_t>(-1) / sizeof(T) / 2 ? nullptr : allocate_lent(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t /*count*/) noexcept { free_lent(memory); }

  friend bool operator==(const LentAllocator&, const LentAllocator&) { return true; }
};

// A vector for memory that is passed to a transport and does not belong to the caller.
template <class T>
using LentVector = std::vector<T, LentAllocator<T>>;

}  // namespace perseus
