#include "transport/self/fabric.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "transport/self/channel.h"
#include "transport/self/transport.h"

namespace perseus::self {

Link SelfFabric::connect(std::span<const int> members, const BootstrapAllgather& exchange) {
  exchange("");
  if (std::find(members.begin(), members.end(), rank_) == members.end()) return {};
  return {std::make_unique<SelfTransport>(), std::make_unique<SelfChannel>()};
}

void* SelfFabric::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const auto size = std::max<std::size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  void* memory = size < bytes ? nullptr : std::aligned_alloc(kAlignment, size);
  if (memory != nullptr) std::memset(memory, 0, size);
  return memory;
}

void SelfFabric::release(void* memory) { std::free(memory); }

}  // namespace perseus::self
