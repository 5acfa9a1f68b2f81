#include <algorithm>
#include <array>

#include "transport/shm/transport.h"

namespace perseus::shm {

Status ShmTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return as_status([&] {
    const auto total = sum(counts);
    if (total == 0) return;
    const auto size_each = static_cast<std::int64_t>(size_of(reduction.dtype));
    const auto my_bytes = counts[static_cast<std::size_t>(rank())] * size_each;
    // The result is buffered if it would overwrite what peers still have to read.
    std::vector<std::byte> buffered;
    if (overlap(in, total * size_each, out, my_bytes)) buffered.resize(static_cast<std::size_t>(my_bytes));
    auto* to = buffered.empty() ? static_cast<std::byte*>(out) : buffered.data();

    describe_range(in, static_cast<std::uint64_t>(total * size_each));
    exchange_descriptors();
    if (all_reachable()) {
      scatter_from_arena(reduction, to, counts);
      sync();
    } else {
      scatter_staged(reduction, static_cast<const std::byte*>(in), to, counts);
    }
    if (!buffered.empty()) host::copy(out, to, buffered.size(), host::Store::cached);
    next_descriptor();
  });
}

void ShmTransport::scatter_from_arena(const Reduction& reduction, void* out, Counts counts) {
  const auto me = static_cast<std::size_t>(rank());
  if (counts[me] == 0) return;
  const auto total = sum(counts);
  std::vector<const void*> from(counts.size());
  for (std::size_t m = 0; m < from.size(); ++m) {
    const auto bytes = static_cast<std::uint64_t>(total) * size_of(reduction.dtype);
    auto* data = reach(static_cast<int>(m), descriptor_of(static_cast<int>(m)).run[0].in, bytes);
    from[m] = at_element(data, sum(counts.first(me)), size_of(reduction.dtype));
  }
  const std::array<void*, 1> to = {out};
  host::reduce({.reduction = reduction,
                .from = from,
                .to = to,
                .count = counts[me],
                .store = store_for(static_cast<std::uint64_t>(total) * size_of(reduction.dtype))});
}

void ShmTransport::scatter_staged(const Reduction& reduction, const std::byte* in, std::byte* out, Counts counts) {
  const auto wire_size = size_of(reduction.wire_dtype);
  const auto members = counts.size();
  const auto me = static_cast<std::size_t>(rank());
  // A slot has a place for each receiver.
  const auto longest = *std::max_element(counts.begin(), counts.end());
  const auto part = stage_parts(static_cast<std::uint64_t>(longest) * wire_size) / static_cast<std::int64_t>(wire_size);
  std::vector<const void*> from(members);
  const auto length = [&](std::size_t m, std::int64_t c) {
    return std::clamp<std::int64_t>(counts[m] - c * part, 0, part);
  };
  pipeline((longest + part - 1) / part,
           [&](std::int64_t c) {
             std::int64_t begin = 0;
             for (std::size_t m = 0; m < members; ++m) {
               if (const auto n = length(m, c)) {
                 const auto* data = in + static_cast<std::size_t>(begin + c * part) * size_of(reduction.dtype);
                 host::pack(reduction, data,
                            at_element(slot(rank(), c), static_cast<std::int64_t>(m) * part, wire_size), n,
                            host::Store::cached);
               }
               begin += counts[m];
             }
           },
           [&](std::int64_t c) {
             const auto n = length(me, c);
             if (n == 0) return;
             for (std::size_t m = 0; m < members; ++m) {
               from[m] = at_element(slot(static_cast<int>(m), c), static_cast<std::int64_t>(me) * part, wire_size);
             }
             const std::array<void*, 1> to = {at_element(out, c * part, size_of(reduction.dtype))};
             host::reduce({.reduction = reduction, .from = from, .packed = true, .to = to, .count = n});
           });
}

}  // namespace perseus::shm
