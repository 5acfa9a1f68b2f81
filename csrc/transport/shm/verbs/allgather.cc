#include <algorithm>

#include "transport/shm/transport.h"

namespace perseus::shm {

Status ShmTransport::allgather(const void* in, void* out, Counts bytes) {
  return as_status([&] {
    const auto total = sum(bytes);
    if (total == 0) return;
    std::vector<std::byte*> place(bytes.size());
    auto* next = static_cast<std::byte*>(out);
    for (std::size_t m = 0; m < bytes.size(); ++m) {
      place[m] = next;
      next += bytes[m];
    }
    const auto me = static_cast<std::size_t>(rank());
    const auto* mine = static_cast<const std::byte*>(in);
    const auto store = store_for(static_cast<std::uint64_t>(total));
    std::vector<std::byte> kept;  // a copy, if this rank's result would overwrite what peers still have to read
    if (mine != place[me] && overlap(mine, bytes[me], out, total)) {
      kept.assign(mine, mine + bytes[me]);
      mine = kept.data();
    }

    describe_range(mine, static_cast<std::uint64_t>(bytes[me]));
    exchange_descriptors();
    std::int64_t longest = 0;
    bool any_reachable = false;
    for (std::size_t m = 0; m < bytes.size(); ++m) {
      const bool reachable = descriptor_of(static_cast<int>(m)).reachable != 0;
      any_reachable = any_reachable || reachable;
      if (!reachable) longest = std::max(longest, bytes[m]);
    }
    const auto chunk = stage(static_cast<std::uint64_t>(longest));
    const auto part = [&](std::size_t m, std::int64_t c) {
      const bool staged = descriptor_of(static_cast<int>(m)).reachable == 0;
      return staged ? static_cast<std::size_t>(std::clamp<std::int64_t>(bytes[m] - c * chunk, 0, chunk)) : 0;
    };
    if (bytes[me] > 0) host::copy(place[me], mine, static_cast<std::size_t>(bytes[me]), store);
    pipeline((longest + chunk - 1) / chunk,
             [&](std::int64_t c) {
               if (const auto n = part(me, c)) host::copy(slot(rank(), c), mine + c * chunk, n, host::Store::cached);
             },
             [&](std::int64_t c) {
               for (std::size_t m = 0; m < bytes.size(); ++m) {
                 const auto n = m == me ? 0 : part(m, c);
                 if (n > 0) host::copy(place[m] + c * chunk, slot(static_cast<int>(m), c), n, store);
               }
             });
    if (any_reachable) {
      for (std::size_t m = 0; m < bytes.size(); ++m) {
        const auto& descriptor = descriptor_of(static_cast<int>(m));
        if (m == me || descriptor.reachable == 0 || bytes[m] == 0) continue;
        const auto n = static_cast<std::size_t>(bytes[m]);
        host::copy(place[m], reach(static_cast<int>(m), descriptor.run[0].in, n), n, store);
      }
      sync();
    }
    next_descriptor();
  });
}

}  // namespace perseus::shm
