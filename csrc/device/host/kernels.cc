#include "device/host/kernels.h"

#if defined(PERSEUS_HAVE_AVX2) || defined(PERSEUS_HAVE_AVX512)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/host/tables.h"

namespace perseus::host {

namespace {

#if defined(PERSEUS_HAVE_AVX2) || defined(PERSEUS_HAVE_AVX512)
// Some compilers' __builtin_cpu_supports does not know F16C.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
#endif

std::vector<const Kernels*> find_usable() {
  std::vector<const Kernels*> found;
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
#ifdef PERSEUS_HAVE_AVX512
  if (has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    found.push_back(&kAvx512Kernels);
  }
#endif
#ifdef PERSEUS_HAVE_AVX2
  if (has_avx2()) found.push_back(&kAvx2Kernels);
#endif
#ifdef PERSEUS_HAVE_NEON
  found.push_back(&kNeonKernels);
#endif
  found.push_back(&kScalarKernels);
  return found;
}

const Kernels& best() {
  static const Kernels& kernels = *usable_kernels().front();
  return kernels;
}

bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

// Returns null if there is no such kernel.
ReduceKernel find_kernel(const Kernels& kernels, const Reduction& reduction, bool from_wire, bool to_wire) {
  const auto op = static_cast<std::size_t>(reduction.op);
  const auto plain = [&](DType dtype) { return kernels.plain[static_cast<std::size_t>(dtype)][op]; };
  if (reduction.wire_dtype == reduction.dtype) return plain(reduction.dtype);
  const bool is_float32 = reduction.dtype == DType::float32;
  if (!is_half(reduction.wire_dtype) || !(is_float32 || reduction.dtype == DType::float64)) return nullptr;
  if (from_wire && to_wire) return plain(reduction.wire_dtype);
  const auto conversion = from_wire ? Conversion::wire_to_dtype
                          : to_wire ? Conversion::dtype_to_wire
                                    : Conversion::dtype_to_dtype;
  const auto wire = reduction.wire_dtype == DType::float16 ? 0 : 1;
  return kernels.compressed[is_float32 ? 0 : 1][wire][static_cast<std::size_t>(conversion)][op];
}

std::size_t bytes_of(DType dtype, std::int64_t count) { return static_cast<std::size_t>(count) * size_of(dtype); }

// Returns the destinations that get non-temporal stores. These are not the ones that are sources: their lines are in
// the cache, and a non-temporal store would have to evict them first.
std::uint64_t streams_of(const ReduceCall& call) {
  if (call.store == Store::cached) return 0;
  const auto size = size_of(call.to_wire ? call.reduction.wire_dtype : call.reduction.dtype);
  const auto place = [](const void* to) { return reinterpret_cast<std::uintptr_t>(to) % kAlignment; };
  std::uint64_t streams = 0;
  std::uintptr_t wanted = kAlignment;
  for (std::size_t d = 0; d < std::min(call.to.size(), kStreams); ++d) {
    const void* to = call.to[d];
    if (wanted == kAlignment && place(to) % size == 0) wanted = place(to);
    const bool is_source = std::find(call.from.begin(), call.from.end(), to) != call.from.end();
    if (place(to) == wanted && !is_source) streams |= std::uint64_t{1} << d;
  }
  return streams;
}

std::uint64_t overwritten_of(const ReduceCall& call) {
  std::uint64_t overwritten = 0;
  for (std::size_t s = 0; s < std::min(call.from.size(), kStreams); ++s) {
    if (std::find(call.to.begin(), call.to.end(), call.from[s]) != call.to.end()) overwritten |= std::uint64_t{1} << s;
  }
  return overwritten;
}

void run(const Kernels& kernels, const ReduceCall& call) {
  const auto& reduction = call.reduction;
  const auto& scale = reduction.scale;
  const auto kernel = find_kernel(kernels, reduction, call.packed, call.to_wire);
  if (kernel == nullptr || scale.divisor == 0) {
    throw Error(ErrorKind::invalid_argument, "no host kernel for " + std::string(name_of(reduction.op)) + " of " +
                                                 std::string(name_of(reduction.dtype)) + " with wire dtype " +
                                                 std::string(name_of(reduction.wire_dtype)) + " and divisor " +
                                                 std::to_string(scale.divisor) +
                                                 "; convert the tensor or use another operation");
  }
  if (call.count <= 0 || call.from.empty() || call.to.empty()) {
    if (call.side_copy.bytes > 0) std::memcpy(call.side_copy.to, call.side_copy.from, call.side_copy.bytes);
    return;
  }
  kernel({call.from.data(), call.from.size(), call.to.data(), call.to.size(), call.count, call.packed ? 1.0 : scale.pre,
          scale.post, scale.divisor, streams_of(call), overwritten_of(call), call.side_copy.to, call.side_copy.from,
          call.side_copy.bytes});
}

// Converts one source to one destination.
void convert(const Kernels& kernels, const Reduction& reduction, double pre, bool from_wire, const void* from, void* to,
             std::int64_t count, Store store) {
  ReduceCall call;
  call.reduction = {reduction.dtype, reduction.wire_dtype, ReduceOp::sum, {.pre = pre}};
  call.from = {&from, 1};
  call.packed = from_wire;
  call.to = {&to, 1};
  call.to_wire = !from_wire;
  call.count = count;
  call.store = store;
  run(kernels, call);
}

}  // namespace

std::span<const Kernels* const> usable_kernels() {
  static const std::vector<const Kernels*> kUsable = find_usable();
  return kUsable;
}

void copy(const Kernels& kernels, void* to, const void* from, std::size_t bytes, Store store) {
  if (bytes == 0 || to == from) return;
  if (store == Store::streaming) {
    kernels.copy_streaming(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void pack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
          Store store) {
  const double pre = reduction.dtype == DType::boolean ? 1.0 : reduction.scale.pre;
  if (reduction.wire_dtype == reduction.dtype && pre == 1.0) {
    copy(kernels, to, from, bytes_of(reduction.dtype, count), store);
  } else {
    convert(kernels, reduction, pre, false, from, to, count, store);
  }
}

void unpack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
            Store store) {
  if (reduction.wire_dtype == reduction.dtype) {
    copy(kernels, to, from, bytes_of(reduction.dtype, count), store);
  } else {
    convert(kernels, reduction, 1.0, true, from, to, count, store);
  }
}

void reduce(const Kernels& kernels, const ReduceCall& call) { run(kernels, call); }

void copy(void* to, const void* from, std::size_t bytes, Store store) { copy(best(), to, from, bytes, store); }

namespace {

// The number of meters. It is checked first, because it costs less than a thread-local variable.
std::atomic<int> meters{0};
thread_local CopyTimes* meter = nullptr;

template <class Copy>
void measured(std::chrono::nanoseconds CopyTimes::* side, const Copy& copy) {
  if (meters.load(std::memory_order_relaxed) == 0 || meter == nullptr) {
    copy();
    return;
  }
  const auto began = std::chrono::steady_clock::now();
  copy();
  meter->*side += std::chrono::steady_clock::now() - began;
}

}  // namespace

CopyMeter::CopyMeter() {
  meters.fetch_add(1, std::memory_order_relaxed);
  meter = &times_;
}

CopyMeter::~CopyMeter() {
  meter = nullptr;
  meters.fetch_sub(1, std::memory_order_relaxed);
}

void pack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store) {
  measured(&CopyTimes::in, [&] { pack(best(), reduction, from, to, count, store); });
}

void unpack(const Reduction& reduction, const void* from, void* to, std::int64_t count, Store store) {
  measured(&CopyTimes::out, [&] { unpack(best(), reduction, from, to, count, store); });
}

void reduce(const ReduceCall& call) { reduce(best(), call); }

void reduce_packed(const Reduction& reduction, std::span<const void* const> from, void* to, bool to_wire,
                   std::int64_t count) {
  if (count == 0) return;
  ReduceCall call;
  call.reduction = reduction;
  call.from = from;
  call.packed = true;
  call.to = std::span<void* const>(&to, 1);
  call.to_wire = to_wire;
  call.count = count;
  reduce(call);
}

const char* instruction_set() { return best().name; }

}  // namespace perseus::host
