#include "transport/shm/ring_buffer.h"

#include <algorithm>
#include <cstring>

namespace perseus::shm {

std::size_t RingBuffer::write(const char* from, std::size_t count) {
  const auto written = state_->written.load(std::memory_order_relaxed);
  const auto used = written - state_->read.load(std::memory_order_acquire);
  const std::size_t fits = std::min<std::size_t>(count, used > capacity_ ? 0 : capacity_ - used);
  const auto at = written & (capacity_ - 1);
  const auto first = std::min<std::size_t>(fits, capacity_ - at);
  std::memcpy(bytes_ + at, from, first);
  std::memcpy(bytes_, from + first, fits - first);
  state_->written.store(written + static_cast<std::uint32_t>(fits), std::memory_order_release);
  return fits;
}

bool RingBuffer::request_room() {
  state_->room_requested.store(1, std::memory_order_seq_cst);
  const auto used = state_->written.load(std::memory_order_relaxed) - state_->read.load(std::memory_order_seq_cst);
  return used >= capacity_;
}

std::size_t RingBuffer::readable() const {
  return state_->written.load(std::memory_order_acquire) - state_->read.load(std::memory_order_relaxed);
}

std::size_t RingBuffer::read(char* to, std::size_t count) {
  const auto read = state_->read.load(std::memory_order_relaxed);
  const auto there = std::min(count, readable());
  const auto at = read & (capacity_ - 1);
  const auto first = std::min<std::size_t>(there, capacity_ - at);
  std::memcpy(to, bytes_ + at, first);
  std::memcpy(to + first, bytes_, there - first);
  state_->read.store(read + static_cast<std::uint32_t>(there), std::memory_order_seq_cst);
  return there;
}

bool RingBuffer::take_room_request() {
  return state_->room_requested.load(std::memory_order_seq_cst) != 0 &&
         state_->room_requested.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace perseus::shm
