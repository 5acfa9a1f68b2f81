// Carries a stream of bytes from one process to another, without locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace perseus::shm {

// The state of a ring buffer, in the reader's segment. All-zero bytes are a valid initial state.
struct RingBufferState {
  alignas(64) std::atomic<std::uint32_t> written{0};  // bytes written so far, wrapping around
  alignas(64) std::atomic<std::uint32_t> read{0};
  std::atomic<std::uint32_t> room_requested{0};  // the writer waits for room
};

// One end of a ring buffer with one writer and one reader. corrupted() detects a malformed state.
class RingBuffer {
 public:
  RingBuffer() = default;
  // `capacity` is a power of two; the bytes follow the state.
  RingBuffer(RingBufferState* state, std::uint32_t capacity)
      : state_(state), bytes_(reinterpret_cast<std::byte*>(state + 1)), capacity_(capacity) {}

  static std::size_t footprint(std::uint32_t capacity) { return sizeof(RingBufferState) + capacity; }

  // Writes as many of the bytes as fit now. Returns their number.
  std::size_t write(const char* from, std::size_t count);
  // Requests a notification from the reader once there is room. Returns false if there is room already.
  bool request_room();

  std::size_t readable() const;
  bool corrupted() const { return readable() > capacity_; }
  // Reads the bytes that are there, at most `count`. Returns their number.
  std::size_t read(char* to, std::size_t count);
  // Returns true once after each request_room(); the reader then notifies the writer.
  bool take_room_request();

 private:
  RingBufferState* state_ = nullptr;
  std::byte* bytes_ = nullptr;
  std::uint32_t capacity_ = 0;
};

}  // namespace perseus::shm
