#include "core.h"

#include <array>
#include <atomic>
#include <stdexcept>

namespace perseus::tensorflow {

namespace {

std::atomic<const PerseusApi*> the_core{nullptr};

constexpr TF_DataType type_of(PerseusDType dtype) {
  switch (dtype) {
    case PERSEUS_DTYPE_UINT8: return TF_UINT8;
    case PERSEUS_DTYPE_INT8: return TF_INT8;
    case PERSEUS_DTYPE_INT16: return TF_INT16;
    case PERSEUS_DTYPE_INT32: return TF_INT32;
    case PERSEUS_DTYPE_INT64: return TF_INT64;
    case PERSEUS_DTYPE_FLOAT16: return TF_HALF;
    case PERSEUS_DTYPE_BFLOAT16: return TF_BFLOAT16;
    case PERSEUS_DTYPE_FLOAT32: return TF_FLOAT;
    case PERSEUS_DTYPE_FLOAT64: return TF_DOUBLE;
    case PERSEUS_DTYPE_BOOLEAN: return TF_BOOL;
    case PERSEUS_DTYPE_UINT16: return TF_UINT16;
    case PERSEUS_DTYPE_COUNT: break;
  }
  throw std::logic_error("PERSEUS_DTYPE_COUNT is not a dtype");
}

struct Type {
  TF_DataType dtype;
  std::size_t bytes;
};

#define PERSEUS_ROW(NAME, name, text, bytes, is_floating) {type_of(PERSEUS_DTYPE_##NAME), bytes},
constexpr std::array<Type, PERSEUS_DTYPE_COUNT> kTypes = {{PERSEUS_DTYPES(PERSEUS_ROW)}};
#undef PERSEUS_ROW

#define PERSEUS_ROW(NAME, name) #name,
constexpr std::array<const char*, PERSEUS_ERROR_COUNT> kKinds = {PERSEUS_ERROR_KINDS(PERSEUS_ROW)};
#undef PERSEUS_ROW

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

bool keeps_shapes(std::int32_t verb) {
  return verb == PERSEUS_ALLREDUCE || verb == PERSEUS_ADASUM || verb == PERSEUS_BROADCAST;
}

std::string error_text(std::int32_t kind, const std::string& message) {
  const auto number = static_cast<std::size_t>(kind);
  return "HorovodInternalError (" +
         std::string(kKinds[number < kKinds.size() ? number : std::size_t{PERSEUS_ERROR_TRANSPORT}]) + "): " + message;
}

// Returns the codes that Horovod's kernels return. A monitored session would restart after ABORTED or UNAVAILABLE, and
// CANCELLED hides the reason.
TF_Code error_code(std::int32_t kind) {
  switch (kind) {
    case PERSEUS_ERROR_INVALID_ARGUMENT: return TF_INVALID_ARGUMENT;
    case PERSEUS_ERROR_NOT_INITIALIZED:
    case PERSEUS_ERROR_DISAGREEMENT: return TF_FAILED_PRECONDITION;
    default: return TF_UNKNOWN;
  }
}

}  // namespace perseus::tensorflow
