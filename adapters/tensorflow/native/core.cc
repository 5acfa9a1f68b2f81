#include "core.h"

#include <array>
#include <atomic>

namespace perseus::tensorflow {

namespace {

std::atomic<const PerseusApi*> the_core{nullptr};

struct Type {
  TF_DataType dtype;
  std::size_t bytes;
};

// By the core's numbers.
constexpr std::array<Type, 11> kTypes = {{
    {TF_UINT8, 1},
    {TF_INT8, 1},
    {TF_INT16, 2},
    {TF_INT32, 4},
    {TF_INT64, 8},
    {TF_HALF, 2},
    {TF_BFLOAT16, 2},
    {TF_FLOAT, 4},
    {TF_DOUBLE, 8},
    {TF_BOOL, 1},
    {TF_UINT16, 2},
}};

// By the core's numbers of kinds of errors.
constexpr std::array<const char*, 8> kKinds = {
    "invalid_argument", "not_initialized", "disagreement", "peer_lost",
    "timed_out",        "transport",       "unavailable",  "shut_down",
};

}  // namespace

const PerseusApi* core() { return the_core.load(std::memory_order_acquire); }
void use_core(const PerseusApi* api) { the_core.store(api, std::memory_order_release); }

std::int32_t core_dtype(TF_DataType dtype) {
  for (std::size_t number = 0; number < kTypes.size(); ++number) {
    if (kTypes[number].dtype == dtype) return static_cast<std::int32_t>(number);
  }
  return -1;
}

bool is_core_dtype(std::int32_t number) { return number >= 0 && static_cast<std::size_t>(number) < kTypes.size(); }

TF_DataType tensorflow_dtype(std::int32_t dtype) { return kTypes[static_cast<std::size_t>(dtype)].dtype; }

std::size_t bytes_per_element(TF_DataType dtype) {
  const auto number = core_dtype(dtype);
  return number < 0 ? 0 : kTypes[static_cast<std::size_t>(number)].bytes;
}

std::string error_text(std::int32_t kind, const std::string& message) {
  const auto number = static_cast<std::size_t>(kind);
  return "HorovodInternalError (" + std::string(number < kKinds.size() ? kKinds[number] : "transport") +
         "): " + message;
}

// The codes that Horovod's kernels return. A monitored session would start anew after ABORTED or UNAVAILABLE, and
// CANCELLED hides the reason.
TF_Code error_code(std::int32_t kind) {
  switch (kind) {
    case 0: return TF_INVALID_ARGUMENT;
    case 1:                                 // not_initialized
    case 2: return TF_FAILED_PRECONDITION;  // disagreement
    default: return TF_UNKNOWN;
  }
}

}  // namespace perseus::tensorflow
