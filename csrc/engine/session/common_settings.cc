#include "engine/session/common_settings.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace perseus {
namespace {

using Value = std::int64_t;

struct Common {
  std::string_view name;
  Value (*get)(const Config&);
  void (*set)(Config&, Value);
};

template <auto kMember>
constexpr Common common(std::string_view name) {
  return {name, [](const Config& config) { return static_cast<Value>(config.*kMember); },
          [](Config& config, Value value) {
            auto& member = config.*kMember;
            member = static_cast<std::remove_reference_t<decltype(member)>>(value);
          }};
}

// Returns the wire dtype (0: none) in the low byte and, above it, the size in bytes from which the dtype is used.
Value wire_of(const Config& config) {
  return config.wire_from_bytes << 8 | (config.wire_dtype ? static_cast<Value>(*config.wire_dtype) + 1 : 0);
}

void set_wire_dtype(Config& config, Value value) {
  config.wire_from_bytes = value >> 8;
  config.wire_dtype = (value & 0xff) == 0 ? std::nullopt : std::optional(static_cast<DType>((value & 0xff) - 1));
}

constexpr std::array<std::string_view, 5> kTransports{"", "shm", "mpi", "oneccl", "ucx"};

template <auto kMember>
constexpr Common transport(std::string_view name) {
  return {name,
          [](const Config& config) -> Value {
            return std::find(kTransports.begin(), kTransports.end(), config.*kMember) - kTransports.begin();
          },
          [](Config& config, Value value) { config.*kMember = kTransports.at(static_cast<std::size_t>(value)); }};
}

constexpr std::array kCommon{
    common<&Config::fusion_threshold_bytes>("PERSEUS_FUSION_THRESHOLD"),
    common<&Config::cache_capacity>("PERSEUS_CACHE_CAPACITY"),
    common<&Config::chunk_bytes>("PERSEUS_CHUNK_BYTES"),
    common<&Config::streams>("PERSEUS_ALLREDUCE_STREAMS"),
    common<&Config::nccl_streams>("PERSEUS_NCCL_STREAMS"),
    common<&Config::nan_check>("PERSEUS_ALLREDUCE_NANCHECK"),
    common<&Config::flat_allreduce>("PERSEUS_ALLREDUCE_MODE"),
    common<&Config::autotune>("PERSEUS_AUTOTUNE"),
    common<&Config::nccl_registers>("PERSEUS_NCCL_REGISTER"),
    Common{"PERSEUS_ALLREDUCE_DTYPE", &wire_of, &set_wire_dtype},
    transport<&Config::transport>("PERSEUS_CPU_TRANSPORT"),
    transport<&Config::host_transport>("PERSEUS_HOST_TRANSPORT"),
};

using Values = std::array<Value, kCommon.size()>;

Values values_of(std::string_view bytes) {
  Values values{};
  if (bytes.size() != sizeof values) {
    throw Error(ErrorKind::unavailable, "the ranks run different versions of perseus_like; install the same one");
  }
  std::memcpy(values.data(), bytes.data(), sizeof values);
  return values;
}

}  // namespace

std::string take_common_settings(Config& config, Bootstrap& bootstrap) {
  if (bootstrap.size() == 1) return {};
  Values mine{};
  for (std::size_t i = 0; i < kCommon.size(); ++i) mine[i] = kCommon[i].get(config);
  const auto all = bootstrap.allgather({reinterpret_cast<const char*>(mine.data()), sizeof mine});
  const auto first = values_of(all.front());
  std::string differing;
  for (std::size_t i = 0; i < kCommon.size(); ++i) {
    kCommon[i].set(config, first[i]);
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (values_of(all[rank])[i] != first[i]) ranks.push_back(rank);
    }
    if (ranks.empty() || bootstrap.rank() != 0) continue;
    differing +=
        (differing.empty() ? "" : ", ") + std::string(kCommon[i].name) + " (rank " + std::to_string(ranks.front());
    differing += ranks.size() > 1 ? " and " + std::to_string(ranks.size() - 1) + " more)" : ")";
  }
  if (differing.empty()) return {};
  return "settings differ from rank 0's: " + differing +
         ". All ranks use rank 0's values. An mpirun forwards variables to other hosts only if told to (-x, -genv)";
}

}  // namespace perseus
