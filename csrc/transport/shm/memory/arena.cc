#include "transport/shm/memory/arena.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/wait/thread.h"

namespace perseus::shm {

namespace {

constexpr const char* kWhat = "shared memory";

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kMostBytes = 64 * kGiB;
constexpr std::size_t kLeastBytes = 16 * kMiB;     // enough for groups and channels
constexpr std::size_t kGranule = 64 * 1024;        // pages are committed and decommitted in granules
constexpr std::size_t kRetainedBytes = 16 * kMiB;  // free memory whose pages stay committed
constexpr std::chrono::seconds kTrimPeriod{2};  // the pages that this time has passed without a need for are returned

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t address_space_in_use() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  return file >> pages ? pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// Returns each segment's part of a quarter of the address space that the limit leaves.
std::size_t address_space_per_rank(int ranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const auto used = address_space_in_use();
  const auto left = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
  return left / 4 / static_cast<std::size_t>(ranks);
}

std::size_t agree_on_bytes(LocalRendezvous& rendezvous, std::size_t wanted, std::string& note) {
  const auto asked = wanted != 0 ? wanted : std::min(physical_memory(), kMostBytes);
  const auto mine = std::min(asked, address_space_per_rank(rendezvous.size()));
  std::string text(sizeof mine, '\0');
  std::memcpy(text.data(), &mine, sizeof mine);
  auto least = asked;
  for (const auto& bytes : rendezvous.allgather(text)) {
    std::size_t value = 0;
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    least = std::min(least, value);
  }
  least = least / kGranule * kGranule;
  if (least < kLeastBytes) {
    throw Error(ErrorKind::unavailable, "shared memory: each rank of this host can share " + size_text(least) +
                                            " and needs at least " + size_text(kLeastBytes) +
                                            "; raise the address-space limit (ulimit -v) or PERSEUS_ARENA_BYTES");
  }
  if (least < asked / kGranule * kGranule) {
    note = "memory shared with the ranks of this host is limited to " + size_text(least) + " per rank instead of " +
           size_text(asked) + ": the address-space limit (ulimit -v) leaves no more";
  }
  return least;
}

}  // namespace

Segments share_segments(LocalRendezvous& rendezvous, std::size_t wanted, std::string& note) {
  const auto bytes = agree_on_bytes(rendezvous, wanted, note);
  Segments segments(static_cast<std::size_t>(rendezvous.size()));
  std::string failure;
  auto& mine = segments[static_cast<std::size_t>(rendezvous.rank())];
  try {
    mine = std::make_shared<Segment>(Segment::create(bytes));
  } catch (const Error& error) {
    failure = error.what();
  }
  rendezvous.agree(kWhat, failure);
  auto fds = rendezvous.exchange_fds(mine->fd());
  try {
    for (std::size_t r = 0; r < segments.size(); ++r) {
      if (!segments[r]) segments[r] = std::make_shared<Segment>(Segment::adopt(std::move(fds[r]), bytes));
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  rendezvous.agree(kWhat, failure);
  return segments;
}

Arena::Arena(Segments segments, int local_rank)
    : segments_(std::move(segments)),
      local_rank_(local_rank),
      mine_(*segments_[static_cast<std::size_t>(local_rank)]),
      heap_(mine_.bytes()),
      committed_(mine_.bytes() / kGranule) {}

Arena::~Arena() {
  {
    std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (trimmer_.joinable()) trimmer_.join();
}

void Arena::make_private() {
  mine_.make_private();
  if (trimmer_.joinable()) trimmer_.detach();
}

void* Arena::allocate(std::size_t bytes) {
  std::scoped_lock lock(mutex_);
  const auto range = heap_.allocate(bytes);
  if (!range) return nullptr;
  if (!commit(*range)) {
    decommit_free(0);
    if (!commit(*range)) {
      heap_.release(range->offset);
      return nullptr;
    }
  }
  peak_ = std::max(peak_, heap_.used());
  return mine_.base() + range->offset;
}

void Arena::release(void* memory) {
  if (memory == nullptr) return;
  std::scoped_lock lock(mutex_);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - mine_.base());
  if (kept_.contains(offset)) return;
  if (heap_.release(offset) && has_excess() && !is_trimming_) start_trimming();
}

bool Arena::has_excess() const { return committed_bytes_ > heap_.used() + kRetainedBytes; }

void Arena::start_trimming() {
  try {
    if (!trimmer_.joinable()) trimmer_ = start_thread([this] { trim(); });
    is_trimming_ = true;
    changed_.notify_one();
  } catch (const Error&) {  // the process may not have a further thread
    decommit_free(heap_.used() + kRetainedBytes);
  }
}

void Arena::trim() {
  pthread_setname_np(pthread_self(), "perseus-trim");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || is_trimming_; });
    peak_ = heap_.used();
    changed_.wait_for(lock, kTrimPeriod, [this] { return stopping_; });
    if (stopping_) return;
    decommit_free(peak_ + kRetainedBytes);
    is_trimming_ = peak_ > heap_.used();  // otherwise the rest is needed, or in pages that are needed
  }
}

void Arena::keep_given_memory() {
  std::scoped_lock lock(mutex_);
  for (const auto& [offset, bytes] : heap_.given_ranges()) kept_.insert(offset);
}

bool Arena::commit(Heap::Range range) {
  const auto first = range.offset / kGranule;
  const auto last = (range.offset + range.bytes - 1) / kGranule;
  const auto missing = std::count(committed_.begin() + static_cast<std::ptrdiff_t>(first),
                                  committed_.begin() + static_cast<std::ptrdiff_t>(last) + 1, false);
  if (missing > 0 && !limits_.allow(static_cast<std::size_t>(missing) * kGranule)) return false;
  for (auto g = first; g <= last; ++g) {
    if (committed_[g]) continue;
    auto end = g;
    while (end <= last && !committed_[end]) ++end;
    if (!mine_.commit(g * kGranule, (end - g) * kGranule)) return false;
    committed_bytes_ += (end - g) * kGranule;
    while (g < end) committed_[g++] = true;
  }
  return true;
}

// Returns the pages of free memory from the end on, until `keep` bytes are committed: allocations prefer the beginning.
void Arena::decommit_free(std::size_t keep) {
  const auto& ranges = heap_.free_ranges();
  for (auto range = ranges.rbegin(); range != ranges.rend() && committed_bytes_ > keep; ++range) {
    const auto [offset, bytes] = *range;
    const auto last = (offset + bytes) / kGranule;
    for (auto g = (offset + kGranule - 1) / kGranule; g < last; ++g) {
      auto end = g;
      while (end < last && committed_[end]) committed_[end++] = false;
      if (end == g) continue;
      mine_.decommit(g * kGranule, (end - g) * kGranule);
      committed_bytes_ -= (end - g) * kGranule;
      g = end;
    }
  }
}

std::optional<std::uint64_t> Arena::offset_of(const void* data, std::size_t bytes) const {
  const auto base = reinterpret_cast<std::uintptr_t>(mine_.base());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address < base || address - base > mine_.bytes() || bytes > mine_.bytes() - (address - base)) return std::nullopt;
  return address - base;
}

std::byte* Arena::at(int local_rank, std::uint64_t offset, std::uint64_t bytes) const {
  const auto& segment = *segments_[static_cast<std::size_t>(local_rank)];
  if (offset > segment.bytes() || bytes > segment.bytes() - offset) return nullptr;
  return segment.base() + offset;
}

}  // namespace perseus::shm
