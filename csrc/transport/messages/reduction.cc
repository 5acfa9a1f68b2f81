#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "device/host/kernels.h"
#include "transport/messages/transport.h"
#include "transport/scattered.h"

namespace perseus::messages {
namespace {

constexpr std::size_t kSmallBytes = 64 << 10;  // up to this number of bytes from all peers, gathering is faster
constexpr std::size_t kShortestSegment = 64 << 10;
constexpr std::size_t kLongestSegment = 508 << 10;  // with headers, it fits into what a network receives at once
constexpr std::size_t kStagingBytes = 64 << 20;     // most bytes of contributions in flight
constexpr std::int64_t kLeastSegments = 4;          // least number of segments in flight
constexpr std::int64_t kGrain = 64;                 // blocks and segments begin at multiples of this number of elements

std::size_t offset(std::int64_t elements, std::size_t width) { return static_cast<std::size_t>(elements) * width; }

struct Range {
  std::int64_t begin = 0, count = 0;
};

// Sends every peer its part of this rank's input, segment by segment, and combines the contributions to the own part.
class Contributions {
 public:
  // Rank r owns elements [begins[r], begins[r + 1]).
  Contributions(Communicator& communicator, Staging& staging, const Reduction& reduction, const Scattered& in,
                std::vector<std::int64_t> begins)
      : communicator_(communicator),
        reduction_(reduction),
        in_(in),
        begins_(std::move(begins)),
        width_(size_of(reduction.wire_dtype)),
        direct_(in.contiguous() != nullptr && reduction.wire_dtype == reduction.dtype && reduction.scale.pre == 1.0) {
    std::int64_t longest = 0;
    for (int r = 0; r < communicator.size(); ++r) longest = std::max(longest, owned(r));
    ahead_ = std::max<std::int64_t>(kLeastSegments, std::int64_t{2} * communicator.streams());
    segment_ = choose_segment(longest);
    segments_ = (longest + segment_ - 1) / segment_;
    if (!direct_) packed_ = resized(staging.packed, offset(in.count(), width_));
    const auto peers = static_cast<std::size_t>(communicator.size());
    arrived_ = resized(staging.contributions, static_cast<std::size_t>(ahead_) * peers * offset(segment_, width_));
  }

  std::int64_t segments() const { return segments_; }
  std::int64_t ahead() const { return ahead_; }

  Range range(int owner, std::int64_t segment) const {
    const auto skip = std::min(segment * segment_, owned(owner));
    return {begins_[static_cast<std::size_t>(owner)] + skip, std::min(segment_, owned(owner) - skip)};
  }
  Range own(std::int64_t segment) const { return range(communicator_.rank(), segment); }

  // At most ahead() segments may be started and not yet combined.
  void start(std::int64_t segment) {
    const int size = communicator_.size(), rank = communicator_.rank();
    auto& receiving = receiving_.emplace_back(communicator_, segment);
    for (int step = 1; step < size; ++step) {
      const int peer = (rank - step + size) % size;
      receiving.receive(place(segment, peer), offset(own(segment).count, width_), peer, Tag::contribution);
    }
    auto& sending = sending_.emplace_back(communicator_, segment);
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      const auto part = range(peer, segment);
      sending.send(packed(part), offset(part.count, width_), peer, Tag::contribution);
    }
  }

  // Waits for the contributions to the oldest segment and combines them.
  void combine(std::int64_t segment, void* to, bool as_wire_dtype) {
    const auto part = own(segment);
    std::vector<const void*> from;
    from.reserve(static_cast<std::size_t>(communicator_.size()));
    for (int r = 0; r < communicator_.size(); ++r) {
      from.push_back(r == communicator_.rank() ? packed(part) : place(segment, r));
    }
    receiving_.front().wait();
    receiving_.pop_front();
    if (part.count > 0) host::reduce_packed(reduction_, from, to, as_wire_dtype, part.count);
  }

  // Returns the number of segments that are sent. The memory of their input may be written.
  std::int64_t sent() {
    while (!sending_.empty() && sending_.front().done()) {
      sending_.pop_front();
      ++sent_;
    }
    return sent_;
  }
  void wait_sent(std::int64_t segment) {
    while (sent() <= segment) sending_.front().wait();
  }

 private:
  std::int64_t owned(int rank) const {
    return begins_[static_cast<std::size_t>(rank) + 1] - begins_[static_cast<std::size_t>(rank)];
  }

  std::int64_t choose_segment(std::int64_t longest) const {
    const auto all = static_cast<std::size_t>(ahead_) * static_cast<std::size_t>(communicator_.size());
    auto bytes =
        std::clamp(offset(longest, width_) / static_cast<std::size_t>(2 * ahead_), kShortestSegment, kLongestSegment);
    bytes = std::min(bytes, kStagingBytes / all);
    return std::max(kGrain, static_cast<std::int64_t>(bytes / width_) / kGrain * kGrain);
  }

  // Returns this rank's contribution to a range in the wire dtype.
  const void* packed(Range part) {
    if (direct_) return in_.contiguous(part.begin);
    auto* to = packed_ + offset(part.begin, width_);
    in_.pack(reduction_, part.begin, part.count, to);
    return to;
  }

  std::byte* place(std::int64_t segment, int peer) const {
    return arrived_ + offset((segment % ahead_) * communicator_.size() + peer, offset(segment_, width_));
  }

  Communicator& communicator_;
  const Reduction& reduction_;
  const Scattered& in_;
  std::vector<std::int64_t> begins_;
  std::size_t width_;
  bool direct_;  // the input can be sent without packing
  std::int64_t segment_ = 1, segments_ = 0, ahead_ = kLeastSegments;
  std::byte* packed_ = nullptr;
  std::byte* arrived_ = nullptr;
  std::deque<Messages> receiving_, sending_;
  std::int64_t sent_ = 0;
};

// Reduces few bytes: each rank gathers all contributions and combines them.
void allreduce_small(Communicator& communicator, Staging& staging, const Reduction& reduction, const Scattered& in,
                     const Scattered& out) {
  const int size = communicator.size();
  const auto bytes = offset(in.count(), size_of(reduction.wire_dtype));
  auto* blocks = resized(staging.contributions, bytes * static_cast<std::size_t>(size));
  in.pack(reduction, 0, in.count(), blocks);
  communicator.gather_small(blocks, std::vector(static_cast<std::size_t>(size), static_cast<std::int64_t>(bytes)));

  std::vector<const void*> from(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    from[static_cast<std::size_t>(communicator.rank_ahead(i))] = blocks + offset(i, bytes);
  }
  const bool direct = out.contiguous() != nullptr;
  void* to = direct ? out.contiguous() : resized(staging.packed, bytes);
  host::reduce_packed(reduction, from, to, !direct, in.count());
  if (!direct) out.unpack(reduction, 0, out.count(), to);
}

// Distributes the combined elements from their owners to all ranks.
class Results {
 public:
  Results(Communicator& communicator, Staging& staging, const Reduction& reduction, const Scattered& out,
          const Contributions& contributions)
      : communicator_(communicator),
        reduction_(reduction),
        out_(out),
        contributions_(contributions),
        width_(size_of(reduction.wire_dtype)),
        direct_(out.contiguous() != nullptr && reduction.wire_dtype == reduction.dtype) {
    memory_ = direct_ ? out.contiguous() : resized(staging.packed, offset(out.count(), width_));
  }

  bool direct() const { return direct_; }
  std::byte* at(Range part) const { return memory_ + offset(part.begin, width_); }

  // Posts the receives of the first `segments` segments. What arrives before that is copied once more.
  void receive(std::int64_t segments) {
    const int size = communicator_.size(), rank = communicator_.rank();
    for (; expected_ < segments; ++expected_) {
      auto& messages = receiving_.emplace_back(communicator_, expected_);
      for (int step = 1; step < size; ++step) {
        const int peer = (rank - step + size) % size;
        const auto part = contributions_.range(peer, expected_);
        messages.receive(at(part), offset(part.count, width_), peer, Tag::result);
      }
    }
  }

  void send(std::int64_t segment) {
    const int size = communicator_.size(), rank = communicator_.rank();
    auto& messages = sending_.emplace_back(communicator_, segment);
    const auto own = contributions_.own(segment);
    for (int step = 1; step < size; ++step) {
      messages.send(at(own), offset(own.count, width_), (rank + step) % size, Tag::result);
    }
    if (std::ssize(sending_) > contributions_.ahead()) finish_oldest();
  }

  void finish() {
    while (!sending_.empty()) finish_oldest();
  }

 private:
  void finish_oldest() {
    receiving_.front().wait();
    receiving_.pop_front();
    sending_.front().wait();
    sending_.pop_front();
    const auto segment = finished_++;
    if (direct_) return;
    for (int r = 0; r < communicator_.size(); ++r) {
      const auto part = contributions_.range(r, segment);
      out_.unpack(reduction_, part.begin, part.count, at(part));
    }
  }

  Communicator& communicator_;
  const Reduction& reduction_;
  const Scattered& out_;
  const Contributions& contributions_;
  std::size_t width_;
  bool direct_;  // results are received into their final place
  std::byte* memory_ = nullptr;
  std::deque<Messages> receiving_, sending_;
  std::int64_t expected_ = 0, finished_ = 0;
};

std::vector<std::int64_t> even_blocks(std::int64_t count, int size) {
  std::vector<std::int64_t> begins;
  begins.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) begins.push_back(count / kGrain * r / size * kGrain);
  begins.push_back(count);
  return begins;
}

}  // namespace

Status MessageTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return as_status([&] {
    const auto width = size_of(reduction.dtype);
    const Scattered from(in, width), to(out, width);
    if (from.count() == 0) return;
    const auto bytes = offset(from.count(), size_of(reduction.wire_dtype));
    if (bytes * static_cast<std::size_t>(size() - 1) <= kSmallBytes) {
      allreduce_small(communicator_, staging_, reduction, from, to);
      return;
    }
    Contributions contributions(communicator_, staging_, reduction, from, even_blocks(from.count(), size()));
    Results results(communicator_, staging_, reduction, to, contributions);
    const auto segments = contributions.segments(), ahead = contributions.ahead();
    for (std::int64_t s = 0; s < std::min(ahead, segments); ++s) contributions.start(s);
    for (std::int64_t s = 0; s < segments; ++s) {
      results.receive(contributions.sent());
      contributions.combine(s, results.at(contributions.own(s)), !results.direct());
      contributions.wait_sent(s);
      results.receive(s + 1);
      results.send(s);
      if (s + ahead < segments) contributions.start(s + ahead);
    }
    results.finish();
  });
}

Status MessageTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return as_status([&] {
    std::vector<std::int64_t> begins{0};
    for (const auto count : counts) begins.push_back(begins.back() + count);
    if (begins.back() == 0) return;
    const auto width = size_of(reduction.dtype);
    const Piece whole{const_cast<void*>(in), begins.back()};
    const Scattered from({&whole, 1}, width);
    const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank())]) * width;

    // If the operation is in place, results would overwrite elements that are still to be sent.
    std::vector<std::byte> copy(in == out ? mine : 0);
    auto* to = in == out ? copy.data() : static_cast<std::byte*>(out);
    Contributions contributions(communicator_, staging_, reduction, from, begins);
    const auto segments = contributions.segments(), ahead = contributions.ahead();
    const auto origin = contributions.own(0).begin;
    for (std::int64_t s = 0; s < std::min(ahead, segments); ++s) contributions.start(s);
    for (std::int64_t s = 0; s < segments; ++s) {
      contributions.combine(s, to + offset(contributions.own(s).begin - origin, width), false);
      contributions.wait_sent(s);
      if (s + ahead < segments) contributions.start(s + ahead);
    }
    if (in == out && mine > 0) std::memcpy(out, copy.data(), mine);
  });
}

}  // namespace perseus::messages
