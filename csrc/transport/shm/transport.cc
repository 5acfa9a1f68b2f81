#include "transport/shm/transport.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/wait/blocking.h"

namespace perseus::shm {

namespace {

constexpr std::uint64_t kLine = 64;

// Returns true if `next` is the place behind the `bytes` bytes at `place`.
bool is_next(Place place, std::uint64_t bytes, Place next) {
  return place.segment == next.segment && place.offset + bytes == next.offset;
}

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<GroupView> view, Staging staging, Waiter waiter, const Liveness& liveness)
    : view_(std::move(view)),
      staging_(staging),
      waiter_(std::move(waiter)),
      liveness_(liveness),
      seen_changes_(static_cast<std::size_t>(view_->size())),
      most_chunk_(staging.usual_chunk_bytes) {}

void ShmTransport::set_chunk_bytes(std::size_t bytes) {
  const auto least = least_chunk_bytes(static_cast<std::size_t>(size()));
  most_chunk_ = std::bit_floor(std::clamp(bytes, std::min(least, staging_.chunk_bytes), staging_.chunk_bytes));
  ring_end_ = 0;
}

Status ShmTransport::fail(const Status& status) {
  failure_ = status;
  auto& header = view_->header(rank());
  header.broken.store(1, std::memory_order_seq_cst);
  futex_wake(header.flag.step);
  // Peers that have not noticed the failure yet still read and write the described memory.
  if (my_descriptor().reachable != 0) {
    has_lent_memory_ = true;
    view_->arena().keep_given_memory();
  }
  return failure_;
}

void ShmTransport::abort(const Status& why) {
  if (failure_.ok()) static_cast<void>(fail(why));
}

void ShmTransport::throw_lost(int member) const {
  // The member may have stopped because it already knows of a death that this process will learn of soon.
  before_blocking();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const std::atomic<std::uint32_t> never{0};
  while (!liveness_.any_lost() && std::chrono::steady_clock::now() < end) {
    futex_wait(never, 0, std::chrono::milliseconds(10));
  }
  liveness_.status().throw_if_failed();
  throw Error(ErrorKind::transport,
              "collective over shared memory: rank " + std::to_string(member) +
                  " of the group has failed during the collective; see the error of that rank for the cause");
}

void ShmTransport::wait(int member, std::uint32_t step) {
  auto& header = view_->header(member);
  if (!waiter_.wait(header.flag, step, header.broken, all_arrived_ ? WaitFor::progress : WaitFor::arrival))
    throw_lost(member);
}

void ShmTransport::wait_all(std::uint32_t step) {
  for (int member = 0; member < size(); ++member) {
    if (member != rank()) wait(member, step);
  }
  all_arrived_ = true;
}

void ShmTransport::sync() {
  raise();
  wait_all(step_);
}

Status ShmTransport::barrier() {
  return as_status([&] { sync(); });
}

void ShmTransport::exchange_descriptors() {
  auto& external = view_->external();
  my_descriptor().changes = external.changes();
  sync();
  bool changed = false;
  for (int member = 0; member < size(); ++member) {
    auto& seen = seen_changes_[static_cast<std::size_t>(member)];
    const auto changes = descriptor_of(member).changes;
    changed = changed || (member != rank() && changes > seen);
    seen = std::max(seen, changes);
  }
  if (changed) external.receive();
}

void ShmTransport::next_descriptor() {
  ++descriptors_;
  reached_.clear();
}

std::byte* ShmTransport::reach(int member, Place place, std::uint64_t bytes) {
  auto data = view_->at(member, place, bytes);
  if (data == nullptr) {
    throw Error(ErrorKind::transport,
                "collective over shared memory: rank " + std::to_string(member) +
                    " of the group described memory outside its segment; its process is corrupted");
  }
  if (place.segment == Place::kArena) return data.get();
  return reached_.emplace_back(std::move(data)).get();
}

void ShmTransport::describe_pieces(Pieces in, Pieces out, std::size_t element_size) {
  auto& descriptor = my_descriptor();
  descriptor.reachable = 0;
  descriptor.runs = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(in[i].count) * element_size;
    if (bytes == 0) continue;
    const auto from = view_->place_of(in[i].data, bytes);
    const auto to = in[i].data == out[i].data ? from : view_->place_of(out[i].data, bytes);
    if (!from || !to) return;
    if (descriptor.runs > 0) {
      auto& last = descriptor.run[descriptor.runs - 1];
      if (is_next(last.in, last.bytes, *from) && is_next(last.out, last.bytes, *to)) {
        last.bytes += bytes;
        continue;
      }
    }
    if (descriptor.runs == BufferDescriptor::kRuns) return;
    descriptor.run[descriptor.runs++] = {*from, *to, bytes};
  }
  descriptor.reachable = 1;
}

void ShmTransport::describe_range(const void* data, std::uint64_t bytes) {
  auto& descriptor = my_descriptor();
  const auto place = view_->place_of(data, bytes);
  descriptor.reachable = place.has_value() ? 1 : 0;
  descriptor.runs = 1;
  descriptor.run[0] = {place.value_or(Place{}), {}, bytes};
}

bool ShmTransport::all_reachable() const {
  for (int member = 0; member < size(); ++member) {
    if (descriptor_of(member).reachable == 0) return false;
  }
  return true;
}

ShmTransport::Runs ShmTransport::runs_of(int member, std::size_t element_size, std::int64_t count) {
  const auto& descriptor = descriptor_of(member);
  const auto runs = std::min<std::size_t>(descriptor.runs, BufferDescriptor::kRuns);
  Runs result(runs);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < runs; ++i) {
    const auto run = descriptor.run[i];
    result[i] = {reach(member, run.in, run.bytes), reach(member, run.out, run.bytes),
                 static_cast<std::int64_t>(run.bytes / element_size)};
    total += result[i].count;
  }
  if (total != count) {
    throw Error(ErrorKind::transport, "collective over shared memory: rank " + std::to_string(member) +
                                          " of the group described " + std::to_string(total) + " elements, but " +
                                          std::to_string(count) + " were agreed on; its process is corrupted");
  }
  return result;
}

std::int64_t ShmTransport::stage(std::uint64_t bytes) {
  // Several chunks let packing one and reading another overlap, but each chunk costs a sync.
  constexpr std::uint64_t kChunks = 4;
  constexpr std::uint64_t kLeast = 32 * 1024;
  const auto most = most_chunk_;
  chunk_bytes_ =
      std::min<std::size_t>(most, std::bit_ceil(std::max({kLine, std::min(bytes, kLeast), bytes / kChunks})));
  ring_begin_ = (ring_end_ + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
  ring_end_ = (ring_begin_ + (bytes + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_) % (2 * most_chunk_);
  return static_cast<std::int64_t>(chunk_bytes_);
}

std::int64_t ShmTransport::stage_parts(std::uint64_t bytes) {
  const auto members = static_cast<std::uint64_t>(size());
  const auto lines = (std::max(bytes, kLine) + kLine - 1) / kLine * kLine;
  return stage(lines * members) / static_cast<std::int64_t>(members * kLine) * static_cast<std::int64_t>(kLine);
}

std::byte* ShmTransport::slot(int member, std::int64_t chunk) const {
  const auto at = ring_begin_ + static_cast<std::size_t>(chunk) * chunk_bytes_;
  return view_->block(member) + staging_.ring_offset() + at % (2 * most_chunk_);
}

std::byte* ShmTransport::result(int member, std::int64_t chunk) const {
  return view_->block(member) + staging_.result(static_cast<std::uint32_t>(chunk % Staging::kResults));
}

ShmTransport::Share ShmTransport::share_of(int member, std::int64_t count, std::int64_t unit) const {
  const auto part = ((count + size() - 1) / size() + unit - 1) / unit * unit;
  const auto begin = std::min(count, part * member);
  return {begin, std::min(part, count - begin)};
}

}  // namespace perseus::shm
