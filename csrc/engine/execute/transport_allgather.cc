#include "engine/execute/transport_allgather.h"

#include <cstdint>

#include "base/memory/lent_memory.h"

namespace perseus {

std::vector<std::string> allgather_over(Transport& transport, std::string_view mine) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto size = static_cast<std::int64_t>(mine.size());
  LentVector<std::int64_t> sizes(ranks);
  transport.allgather(&size, sizes.data(), std::vector<std::int64_t>(ranks, sizeof size)).throw_if_failed();
  LentVector<char> all(static_cast<std::size_t>(sum(sizes)));
  transport.allgather(mine.data(), all.data(), sizes).throw_if_failed();
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const auto length : sizes) {
    texts.emplace_back(all.data() + at, static_cast<std::size_t>(length));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

}  // namespace perseus
