// A stream of bytes from one process to another: one writer, one reader, no locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace perseus::shm {

// In the reader's segment. All-zero is a fresh ring.
struct RingState {
  alignas(64) std::atomic<std::uint32_t> written{0};  // bytes ever, wrapping around
  alignas(64) std::atomic<std::uint32_t> read{0};
  std::atomic<std::uint32_t> starved{0};  // the writer waits for room
};

// One end of a ring; the process at the other end may write nonsense into the state, which is noticed.
class Ring {
 public:
  Ring() = default;
  // `capacity` is a power of two; the bytes follow the state.
  Ring(RingState* state, std::uint32_t capacity)
      : state_(state), bytes_(reinterpret_cast<std::byte*>(state + 1)), capacity_(capacity) {}

  static std::size_t footprint(std::uint32_t capacity) { return sizeof(RingState) + capacity; }

  // As many of the bytes as fit now.
  std::size_t write(const char* from, std::size_t count);
  // Asks the reader to ring when there is room; false when there is room already.
  bool starve();

  std::size_t readable() const;
  bool corrupted() const { return readable() > capacity_; }
  // As many bytes as are there, `count` at most.
  std::size_t read(char* to, std::size_t count);
  // True once after the writer has starved: it should hear of the new room.
  bool take_starved();

 private:
  RingState* state_ = nullptr;
  std::byte* bytes_ = nullptr;
  std::uint32_t capacity_ = 0;
};

}  // namespace perseus::shm
