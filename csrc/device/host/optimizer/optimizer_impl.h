// Implements the optimizer kernels for all instruction sets. The file of each instruction set defines kVectorBytes,
// what bfloat16.h needs, and square_root, the correctly rounded square root of a vector. Then it includes this file.
#pragma once

#include "device/host/bfloat16.h"
#include "device/host/lanes.h"
#include "device/host/optimizer/optimizer_tables.h"

namespace perseus::host {
namespace {

constexpr int kFloats = kVectorBytes / sizeof(float);  // in a vector
using Floats = VectorOf<float, kFloats>;
using Halves = VectorOf<std::uint16_t, kFloats>;

// The elements of one vector while they are updated.
struct Elements {
  Floats gradient, parameter, first, second;
};

// A rule updates elements. Each product is rounded, so that no instruction set fuses it with an addition.
struct Sgd {
  static constexpr bool kHasFirst = false;
  static constexpr bool kHasSecond = false;
  PERSEUS_INLINE static void update(const StepFactors& f, Elements& e) {
    e.gradient += rounded(e.parameter * f.decay);
    e.parameter -= rounded(e.gradient * f.rate);
  }
};

template <bool nesterov>
struct Momentum {
  static constexpr bool kHasFirst = true;
  static constexpr bool kHasSecond = false;
  PERSEUS_INLINE static void update(const StepFactors& f, Elements& e) {
    e.gradient += rounded(e.parameter * f.decay);
    e.first = rounded(e.first * f.first_keep) + rounded(e.gradient * f.first_gain);
    const Floats change = nesterov ? e.gradient + rounded(e.first * f.second_keep) : e.first;
    e.parameter -= rounded(change * f.rate);
  }
};

template <bool decays_weights>
struct Adam {
  static constexpr bool kHasFirst = true;
  static constexpr bool kHasSecond = true;
  PERSEUS_INLINE static void update(const StepFactors& f, Elements& e) {
    if constexpr (decays_weights) {
      e.parameter = rounded(e.parameter * f.decay);
    } else {
      e.gradient += rounded(e.parameter * f.decay);
    }
    e.first += rounded((e.gradient - e.first) * f.first_gain);
    const Floats square = rounded(e.gradient * e.gradient);
    e.second = rounded(e.second * f.second_keep) + rounded(square * f.second_gain);
    const Floats root = rounded(square_root(e.second) * f.inverse_root) + f.epsilon;
    e.parameter -= rounded(rounded(e.first / root) * f.rate);
  }
};

// Loads and stores whole vectors, or the first `count` elements of one.
struct Whole {
  template <class V>
  PERSEUS_INLINE V get(const void* from) const {
    return load<V>(from);
  }
  template <class V>
  PERSEUS_INLINE void put(void* to, V value) const {
    store(to, value);
  }
};

struct Part {
  std::size_t count;

  template <class V>
  PERSEUS_INLINE V get(const void* from) const {
    V value{};
    __builtin_memcpy(&value, from, count * (sizeof(V) / kFloats));
    return value;
  }
  template <class V>
  PERSEUS_INLINE void put(void* to, V value) const {
    __builtin_memcpy(to, &value, count * (sizeof(V) / kFloats));
  }
};

template <bool is_half, class Access>
PERSEUS_INLINE Floats gradient_at(const void* from, std::int64_t at, const Access& access) {
  if constexpr (is_half) {
    return widen_bfloat16<kFloats>(access.template get<Halves>(static_cast<const std::uint16_t*>(from) + at));
  } else {
    return access.template get<Floats>(static_cast<const float*>(from) + at);
  }
}

template <class Rule, bool is_half, class Access>
PERSEUS_INLINE void step_vector(const StepJob& job, std::int64_t at, const Access& access) {
  Elements e{};
  Floats sum = gradient_at<is_half>(job.gradients[0], at, access);
  for (std::size_t s = 1; s < job.sources; ++s) sum += gradient_at<is_half>(job.gradients[s], at, access);
  e.gradient = rounded(sum * job.factors.scale);
  e.parameter = access.template get<Floats>(job.master + at);
  if constexpr (Rule::kHasFirst) e.first = access.template get<Floats>(job.first + at);
  if constexpr (Rule::kHasSecond) e.second = access.template get<Floats>(job.second + at);
  Rule::update(job.factors, e);
  access.put(job.master + at, e.parameter);
  if constexpr (is_half) {
    access.put(static_cast<std::uint16_t*>(job.parameters) + at, narrow_bfloat16<kFloats>(e.parameter));
  }
  if constexpr (Rule::kHasFirst) access.put(job.first + at, e.first);
  if constexpr (Rule::kHasSecond) access.put(job.second + at, e.second);
}

// Prefetches one page ahead: processors prefetch within a page by themselves, but wait at the start of each page.
template <class Rule, bool is_half>
PERSEUS_INLINE void fetch_ahead(const StepJob& job, std::int64_t at) {
  constexpr std::int64_t kAhead = 4096 / sizeof(float);
  constexpr std::size_t kGradientBytes = is_half ? 2 : 4;
  for (std::size_t s = 0; s < job.sources; ++s) {
    __builtin_prefetch(static_cast<const char*>(job.gradients[s]) + (at + kAhead) * kGradientBytes);
  }
  __builtin_prefetch(job.master + at + kAhead, 1, 2);
  if constexpr (Rule::kHasFirst) __builtin_prefetch(job.first + at + kAhead, 1, 2);
  if constexpr (Rule::kHasSecond) __builtin_prefetch(job.second + at + kAhead, 1, 2);
}

template <class Rule, bool is_half>
void step_all(const StepJob& job) {
  constexpr std::int64_t kLine = 16;  // floats in a cache line
  static_assert(kLine % kFloats == 0);
  std::int64_t at = 0;
  for (; at + kLine <= job.count; at += kLine) {
    fetch_ahead<Rule, is_half>(job, at);
    for (std::int64_t i = 0; i < kLine; i += kFloats) step_vector<Rule, is_half>(job, at + i, Whole{});
  }
  for (; at < job.count; at += kFloats) {
    const auto left = static_cast<std::size_t>(job.count - at);
    step_vector<Rule, is_half>(job, at, Part{left < kFloats ? left : kFloats});
  }
}

constexpr StepKernels make_step_kernels(const char* name) {
  return {name,
          {&step_all<Sgd, false>, &step_all<Momentum<false>, false>, &step_all<Momentum<true>, false>,
           &step_all<Adam<false>, false>, &step_all<Adam<true>, false>},
          {&step_all<Sgd, true>, &step_all<Momentum<false>, true>, &step_all<Momentum<true>, true>,
           &step_all<Adam<false>, true>, &step_all<Adam<true>, true>}};
}

}  // namespace
}  // namespace perseus::host
