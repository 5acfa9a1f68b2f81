#include <algorithm>
#include <array>

#include "transport/shm/transport.h"

namespace perseus::shm {

namespace {

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPage = 4096;
// Returns true if the result replaces the input, which has just been read and so is in the cache.
bool is_in_place(Pieces in, Pieces out) { return in.front().data == out.front().data; }

// Returns true if packing a contribution would not change it, so that peers may read the owner's memory instead.
bool is_plain(const Reduction& reduction) {
  return reduction.wire_dtype == reduction.dtype && reduction.scale.pre == 1.0;
}

}  // namespace

Status ShmTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return as_status([&] {
    const auto count = total_of(in);
    if (count == 0) return;
    if (static_cast<std::size_t>(count) * size_of(reduction.wire_dtype) <= staging_.small_bytes) {
      reduce_small(reduction, in, out, count);
      return;
    }
    describe_pieces(in, out, size_of(reduction.dtype));
    exchange_descriptors();
    if (all_reachable()) {
      reduce_in_arena(reduction, count);
    } else if (size() <= 2) {
      reduce_in_pairs(reduction, in, out, count);
    } else {
      reduce_in_slices(reduction, in, out, count);
    }
    next_descriptor();
  });
}

// Reduces with one sync: each member copies its contribution to its slot, and each member reduces all of them.
void ShmTransport::reduce_small(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count) {
  const auto place = staging_.small(smalls_++);
  const auto wire_size = size_of(reduction.wire_dtype);
  auto* mine = view_->block(rank()) + place;
  std::int64_t done = 0;
  for (const auto& piece : in) {
    if (piece.count == 0) continue;
    host::pack(reduction, piece.data, at_element(mine, done, wire_size), piece.count, host::Store::cached);
    done += piece.count;
  }
  sync();
  std::vector<const void*> from(static_cast<std::size_t>(size()));
  RunCursor(out, size_of(reduction.dtype)).each(0, count, [&](std::byte* data, std::int64_t first, std::int64_t run) {
    for (int m = 0; m < size(); ++m) {
      from[static_cast<std::size_t>(m)] = at_element(view_->block(m) + place, first, wire_size);
    }
    const std::array<void*, 1> to = {data};
    host::reduce({.reduction = reduction, .from = from, .packed = true, .to = to, .count = run});
  });
}

// Each member reduces its share of the buffer, directly from and into the memory of all members.
void ShmTransport::reduce_in_arena(const Reduction& reduction, std::int64_t count) {
  const auto size_each = size_of(reduction.dtype);
  const auto members = static_cast<std::size_t>(size());
  std::vector<Runs> runs(members);
  for (std::size_t m = 0; m < members; ++m) runs[m] = runs_of(static_cast<int>(m), size_each, count);
  const auto unit = (count * static_cast<std::int64_t>(size_each) > 16 * kPage * size() ? kPage : kLineBytes) /
                    static_cast<std::int64_t>(size_each);
  const auto share = share_of(rank(), count, unit);

  // The members' runs may have different bounds; each step ends at the next bound of any member.
  std::vector<std::size_t> index(members, 0);
  std::vector<std::int64_t> inside(members, share.begin);
  for (std::size_t m = 0; m < members; ++m) {
    while (index[m] < runs[m].size() && inside[m] >= runs[m][index[m]].count) inside[m] -= runs[m][index[m]++].count;
  }
  std::vector<const void*> from(members);
  std::vector<void*> to(members);
  for (std::int64_t done = 0; done < share.count;) {
    auto step = share.count - done;
    for (std::size_t m = 0; m < members; ++m) {
      const auto& run = runs[m][index[m]];
      from[m] = at_element(run.in, inside[m], size_each);
      to[m] = at_element(run.out, inside[m], size_each);
      step = std::min(step, run.count - inside[m]);
    }
    host::reduce({.reduction = reduction, .from = from, .to = to, .count = step});
    done += step;
    for (std::size_t m = 0; m < members; ++m) {
      inside[m] += step;
      if (inside[m] < runs[m][index[m]].count) continue;
      inside[m] = 0;
      ++index[m];
    }
  }
  sync();
}

// Reduces between two members: both copy a chunk to a slot and both reduce it, in one step per chunk without a second
// copy.
void ShmTransport::reduce_in_pairs(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count) {
  const auto size_each = size_of(reduction.dtype);
  const auto wire_size = size_of(reduction.wire_dtype);
  const auto chunk = stage(static_cast<std::uint64_t>(count) * wire_size) / static_cast<std::int64_t>(wire_size);
  const auto store = store_for(static_cast<std::uint64_t>(count) * size_each);
  const bool plain = is_plain(reduction);
  RunCursor packing(in, size_each), reading(in, size_each), writing(out, size_each);
  std::vector<const void*> from(static_cast<std::size_t>(size()));

  // If the pieces are plain, the next chunk is copied while this one is reduced.
  std::int64_t packed = 0;  // elements, in all chunks
  const auto place = [&](std::int64_t element) {
    return at_element(slot(rank(), element / chunk), element % chunk, wire_size);
  };
  const auto pack = [&](std::int64_t c) {
    const auto end = std::min(count, (c + 1) * chunk);
    packing.each(packed, end - packed, [&](std::byte* data, std::int64_t first, std::int64_t run) {
      host::pack(reduction, data, place(packed + first), run, host::Store::cached);
    });
    packed = std::max(packed, end);
  };
  // The part of the next chunk that lies in one run; it is copied while this chunk is reduced.
  const auto side_copy = [&](std::int64_t c, std::int64_t run) -> host::SideCopy {
    const auto end = std::min(count, (c + 1) * chunk);
    if (!plain || packed < c * chunk || packed >= end) return {};
    host::SideCopy copy;
    packing.first(packed, std::min(run, end - packed), [&](std::byte* data, std::int64_t n) {
      copy = {place(packed), data, static_cast<std::size_t>(n) * wire_size};
      packed += n;
    });
    return copy;
  };
  const auto consume = [&](std::int64_t c) {
    writing.each(c * chunk, std::min(chunk, count - c * chunk),
                 [&](std::byte* to, std::int64_t first, std::int64_t run) {
                   for (int m = 0; m < size(); ++m) {
                     from[static_cast<std::size_t>(m)] = at_element(slot(m, c), first, wire_size);
                   }
                   if (plain) {
                     reading.first(c * chunk + first, run,
                                   [&](std::byte* own, std::int64_t) { from[static_cast<std::size_t>(rank())] = own; });
                   }
                   const std::array<void*, 1> destination = {to};
                   host::reduce({.reduction = reduction,
                                 .from = from,
                                 .packed = true,
                                 .to = destination,
                                 .count = run,
                                 .store = store,
                                 .side_copy = side_copy(c + 1, run)});
                 });
  };
  pipeline((count + chunk - 1) / chunk, pack, consume);
}

// Reduces between more than two members: each reduces its share of a chunk and publishes it, and all collect the
// shares. In round c a member reduces chunk c - 1, collects chunk c - 2 and packs chunk c. All members have then ended
// round c - 1, in which they reduced chunk c - 2 and collected chunk c - 3, so two slots and two results suffice.
void ShmTransport::reduce_in_slices(const Reduction& reduction, Pieces in, Pieces out, std::int64_t count) {
  const auto size_each = size_of(reduction.dtype);
  const auto wire_size = size_of(reduction.wire_dtype);
  const auto line = kLineBytes / static_cast<std::int64_t>(wire_size);
  const auto chunk = stage(static_cast<std::uint64_t>(count) * wire_size) / static_cast<std::int64_t>(wire_size);
  const auto chunks = (count + chunk - 1) / chunk;
  const auto length = [&](std::int64_t c) { return std::min(chunk, count - c * chunk); };
  const auto store =
      is_in_place(in, out) ? host::Store::cached : store_for(static_cast<std::uint64_t>(count) * size_each);
  RunCursor packing(in, size_each), writing(out, size_each);
  std::vector<const void*> from(static_cast<std::size_t>(size()));

  const auto pack = [&](std::int64_t c) {
    packing.each(c * chunk, length(c), [&](std::byte* data, std::int64_t first, std::int64_t run) {
      host::pack(reduction, data, at_element(slot(rank(), c), first, wire_size), run, host::Store::cached);
    });
  };
  const auto reduce = [&](std::int64_t c) {
    const auto share = share_of(rank(), length(c), line);
    if (share.count == 0) return;
    for (int m = 0; m < size(); ++m) {
      from[static_cast<std::size_t>(m)] = at_element(slot(m, c), share.begin, wire_size);
    }
    const std::array<void*, 1> to = {at_element(result(rank(), c), share.begin, wire_size)};
    host::reduce({.reduction = reduction,
                  .from = from,
                  .packed = true,
                  .to = to,
                  .to_wire = true,
                  .count = share.count,
                  .store = host::Store::cached});
  };
  const auto collect = [&](std::int64_t c) {
    for (int m = 0; m < size(); ++m) {
      const auto share = share_of(m, length(c), line);
      writing.each(c * chunk + share.begin, share.count, [&](std::byte* data, std::int64_t first, std::int64_t run) {
        host::unpack(reduction, at_element(result(m, c), share.begin + first, wire_size), data, run, store);
      });
    }
  };

  const auto base = step_;
  for (std::int64_t c = 0; c <= chunks + 1; ++c) {
    if (c > 0) wait_all(base + static_cast<std::uint32_t>(c));
    if (c > 0 && c <= chunks) reduce(c - 1);
    if (c > 1) collect(c - 2);
    if (c < chunks) pack(c);
    if (c <= chunks) raise();
  }
}

}  // namespace perseus::shm
