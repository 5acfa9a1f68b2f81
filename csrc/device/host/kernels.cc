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
// Not all compilers' __builtin_cpu_supports know it.
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
  // The compiler's questions ask the operating system too, which must save the wide registers.
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

// Null where there is none.
ReduceKernel find_kernel(const Kernels& kernels, const Reduction& reduction, bool from_wire, bool to_wire) {
  const auto op = static_cast<std::size_t>(reduction.op);
  const auto plain = [&](DType dtype) { return kernels.plain[static_cast<std::size_t>(dtype)][op]; };
  if (reduction.wire == reduction.dtype) return plain(reduction.dtype);
  const bool is_float32 = reduction.dtype == DType::float32;
  if (!is_half(reduction.wire) || !(is_float32 || reduction.dtype == DType::float64)) return nullptr;
  if (from_wire && to_wire) return plain(reduction.wire);
  const auto way = from_wire ? Way::wire_to_dtype : to_wire ? Way::dtype_to_wire : Way::dtype_to_dtype;
  const auto wire = reduction.wire == DType::float16 ? 0 : 1;
  return kernels.compressed[is_float32 ? 0 : 1][wire][static_cast<std::size_t>(way)][op];
}

std::size_t bytes_of(DType dtype, std::int64_t count) { return static_cast<std::size_t>(count) * size_of(dtype); }

// Which destinations are streamed to. Not those that are sources: their lines are in the cache already, and a
// non-temporal store would first have to throw them out.
std::uint64_t streams_of(const ReduceCall& call) {
  if (call.store == Store::cached) return 0;
  const auto size = size_of(call.to_wire ? call.reduction.wire : call.reduction.dtype);
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
                                                 std::string(name_of(reduction.dtype)) + " sent as " +
                                                 std::string(name_of(reduction.wire)) + ", divided by " +
                                                 std::to_string(scale.divisor));
  }
  if (call.count <= 0 || call.from.empty() || call.to.empty()) {
    if (call.beside.bytes > 0) std::memcpy(call.beside.to, call.beside.from, call.beside.bytes);
    return;
  }
  kernel({call.from.data(), call.from.size(), call.to.data(), call.to.size(), call.count, call.packed ? 1.0 : scale.pre,
          scale.post, scale.divisor, streams_of(call), overwritten_of(call), call.beside.to, call.beside.from,
          call.beside.bytes});
}

// A reduction of one source to one destination.
void convert(const Kernels& kernels, const Reduction& reduction, double pre, bool from_wire, const void* from, void* to,
             std::int64_t count, Store store) {
  ReduceCall call;
  call.reduction = {reduction.dtype, reduction.wire, ReduceOp::sum, {.pre = pre}};
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
  if (reduction.wire == reduction.dtype && pre == 1.0) {
    copy(kernels, to, from, bytes_of(reduction.dtype, count), store);
  } else {
    convert(kernels, reduction, pre, false, from, to, count, store);
  }
}

void unpack(const Kernels& kernels, const Reduction& reduction, const void* from, void* to, std::int64_t count,
            Store store) {
  if (reduction.wire == reduction.dtype) {
    copy(kernels, to, from, bytes_of(reduction.dtype, count), store);
  } else {
    convert(kernels, reduction, 1.0, true, from, to, count, store);
  }
}

void reduce(const Kernels& kernels, const ReduceCall& call) { run(kernels, call); }

void copy(void* to, const void* from, std::size_t bytes, Store store) { copy(best(), to, from, bytes, store); }

namespace {

// Looked at first: it costs less than a thread's own variable.
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
