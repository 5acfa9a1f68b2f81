#include "base/memory/lent_memory.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace perseus {

namespace {

constexpr std::size_t kAlignment = 64;

// The header in front of the memory.
struct alignas(kAlignment) Header {
  void* allocated;       // the result of malloc()
  std::uint64_t period;  // the number of earlier calls of keep_lent_memory()
  Header* next;          // the list of kept blocks, so that leak checkers find them
};
static_assert(sizeof(Header) == kAlignment);

std::atomic<std::uint64_t> current_period{0};
std::atomic<Header*> kept{nullptr};
std::atomic<std::size_t> kept_count{0};

}  // namespace

void* allocate_lent(std::size_t bytes, bool zeroed) noexcept {
  constexpr auto kExtra = sizeof(Header) + kAlignment;
  if (bytes > SIZE_MAX - kExtra) return nullptr;
  void* const allocated = zeroed ? std::calloc(bytes + kExtra, 1) : std::malloc(bytes + kExtra);
  if (allocated == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(allocated);
  auto* const start = static_cast<std::byte*>(allocated) + ((kAlignment - address % kAlignment) % kAlignment);
  auto* const header = new (start) Header{allocated, current_period.load(std::memory_order_acquire), nullptr};
  return header + 1;
}

void free_lent(void* memory) noexcept {
  if (memory == nullptr) return;
  auto* const header = static_cast<Header*>(memory) - 1;
  if (header->period == current_period.load(std::memory_order_acquire)) {
    std::free(header->allocated);
    return;
  }
  header->next = kept.load(std::memory_order_relaxed);
  while (!kept.compare_exchange_weak(header->next, header, std::memory_order_release, std::memory_order_relaxed)) {
  }
  kept_count.fetch_add(1, std::memory_order_relaxed);
}

void keep_lent_memory() noexcept { current_period.fetch_add(1, std::memory_order_acq_rel); }

std::size_t kept_lent_memory() noexcept { return kept_count.load(std::memory_order_relaxed); }

}  // namespace perseus
