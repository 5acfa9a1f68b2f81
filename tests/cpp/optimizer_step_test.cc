#include "device/host/optimizer/optimizer_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/host/optimizer/optimizer_tables.h"
#include "device/host/tables.h"

namespace perseus::host {
namespace {

// The state of an optimizer in one memory layout: gradients of each rank, parameters, moments.
struct State {
  std::vector<std::vector<float>> gradients;
  std::vector<float> parameters, first, second;

  State(std::size_t ranks, std::size_t count, unsigned seed) : parameters(count), first(count), second(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    gradients.resize(ranks);
    for (auto& gradient : gradients) {
      for (std::size_t i = 0; i < count; ++i) gradient.push_back(normal(random));
    }
    for (auto& value : parameters) value = normal(random);
  }

  void new_gradients(unsigned seed) { gradients = State(gradients.size(), parameters.size(), seed).gradients; }
};

std::vector<const void*> addresses(const std::vector<std::vector<float>>& gradients) {
  std::vector<const void*> found;
  found.reserve(gradients.size());
  for (const auto& gradient : gradients) found.push_back(gradient.data());
  return found;
}

void step_float32(const StepKernels& kernels, const StepOptions& options, State& state, std::size_t from,
                  std::size_t count) {
  auto gradients = addresses(state.gradients);
  for (auto& gradient : gradients) gradient = static_cast<const float*>(gradient) + from;
  StepCall call;
  call.options = options;
  call.gradients = gradients;
  call.parameters = state.parameters.data() + from;
  call.first = state.first.data() + from;
  call.second = state.second.data() + from;
  call.count = static_cast<std::int64_t>(count);
  step(kernels, call);
}

// One element in double precision, in the words of the papers and of torch's documentation.
struct Element {
  double parameter = 0, first = 0, second = 0;
};

void expected_sgd(const StepOptions& o, double gradient, Element& e) {
  gradient += o.weight_decay * e.parameter;
  double change = gradient;
  if (o.momentum != 0.0) {
    e.first = o.step == 1 ? gradient : o.momentum * e.first + (1 - o.dampening) * gradient;
    change = o.nesterov ? gradient + o.momentum * e.first : e.first;
  }
  e.parameter -= o.learning_rate * change;
}

void expected_adam(const StepOptions& o, double gradient, Element& e) {
  if (o.kind == OptimizerKind::adamw) {
    e.parameter -= o.learning_rate * o.weight_decay * e.parameter;
  } else {
    gradient += o.weight_decay * e.parameter;
  }
  e.first = o.beta1 * e.first + (1 - o.beta1) * gradient;
  e.second = o.beta2 * e.second + (1 - o.beta2) * gradient * gradient;
  const auto unbiased = [&](double moment, double beta) {
    return moment / (1 - std::pow(beta, static_cast<double>(o.step)));
  };
  e.parameter -= o.learning_rate * unbiased(e.first, o.beta1) / (std::sqrt(unbiased(e.second, o.beta2)) + o.epsilon);
}

void expect_step(const StepOptions& options, const State& state, std::vector<Element>& elements) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    double gradient = 0;
    for (const auto& of_rank : state.gradients) gradient += of_rank[i];
    gradient *= options.gradient_scale;
    (options.kind == OptimizerKind::sgd ? expected_sgd : expected_adam)(options, gradient, elements[i]);
  }
}

std::vector<Element> elements_of(const State& state) {
  std::vector<Element> elements;
  for (const float parameter : state.parameters) elements.push_back({.parameter = parameter});
  return elements;
}

struct Case {
  const char* name;
  StepOptions options;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

const Case kCases[] = {
    {"sgd", {.learning_rate = 0.1}},
    {"sgd_decay", {.gradient_scale = -0.5, .learning_rate = 0.1, .weight_decay = 0.2}},
    {"momentum", {.learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.3}},
    {"nesterov", {.gradient_scale = 0.25, .learning_rate = 0.1, .momentum = 0.8, .nesterov = true}},
    {"adam", {.kind = OptimizerKind::adam, .gradient_scale = 0.5, .learning_rate = 0.01, .weight_decay = 0.1}},
    {"adamw", {.kind = OptimizerKind::adamw, .learning_rate = 0.01, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95}},
};

class OptimizerStep : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerStep, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OptimizerStep, IsWhatTheFormulasSayForEachInstructionSetAndNumberOfRanks) {
  for (const auto* kernels : usable_step_kernels()) {
    for (const std::size_t ranks : {1, 2, 3, 5}) {
      State state(ranks, 103, 1);
      auto expected = elements_of(state);
      auto options = GetParam().options;
      for (options.step = 1; options.step <= 4; ++options.step) {
        step_float32(*kernels, options, state, 0, 103);
        expect_step(options, state, expected);
        state.new_gradients(static_cast<unsigned>(options.step) + 1);
      }
      for (std::size_t i = 0; i < 103; ++i) {
        ASSERT_NEAR(state.parameters[i], expected[i].parameter, 3e-6) << kernels->name << ", element " << i;
        ASSERT_NEAR(state.first[i], expected[i].first, 3e-6) << kernels->name << ", element " << i;
        ASSERT_NEAR(state.second[i], expected[i].second, 1e-5) << kernels->name << ", element " << i;
      }
    }
  }
}

TEST_P(OptimizerStep, HasEqualBitsOnAllInstructionSetsAndAtAllPlaces) {
  constexpr std::size_t kCount = 150;
  auto options = GetParam().options;
  State whole(3, kCount, 7);
  whole.gradients[0][5] = std::numeric_limits<float>::denorm_min();
  whole.gradients[1][6] = std::numeric_limits<float>::infinity();
  const State begin = whole;
  for (options.step = 1; options.step <= 2; ++options.step) {
    step_float32(*usable_step_kernels().back(), options, whole, 0, kCount);
  }
  const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
    const auto same = [](float x, float y) {
      return (std::isnan(x) && std::isnan(y)) || std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
  };
  for (const auto* kernels : usable_step_kernels()) {
    for (std::size_t cut = 0; cut < 40; ++cut) {
      State parts = begin;
      for (options.step = 1; options.step <= 2; ++options.step) {
        step_float32(*kernels, options, parts, 0, cut);
        step_float32(*kernels, options, parts, cut, kCount - cut);
      }
      ASSERT_TRUE(equal(parts.parameters, whole.parameters)) << kernels->name << ", cut at " << cut;
      ASSERT_TRUE(equal(parts.first, whole.first)) << kernels->name << ", cut at " << cut;
      ASSERT_TRUE(equal(parts.second, whole.second)) << kernels->name << ", cut at " << cut;
    }
  }
}

float widened(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

TEST_P(OptimizerStep, OfBfloat16StepsTheMasterAndRoundsItToNearest) {
  constexpr std::size_t kCount = 77;
  for (const auto* kernels : usable_step_kernels()) {
    State state(2, kCount, 3);
    std::vector<std::vector<std::uint16_t>> halves(2);
    for (std::size_t r = 0; r < 2; ++r) {
      for (auto& value : state.gradients[r]) {
        halves[r].push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
        value = widened(halves[r].back());
      }
    }
    State same = state;
    std::vector<std::uint16_t> parameters(kCount + 1, 0x1234);
    const std::vector<const void*> gradients{halves[0].data(), halves[1].data()};
    StepCall call;
    call.options = GetParam().options;
    call.dtype = DType::bfloat16;
    call.gradients = gradients;
    call.parameters = parameters.data();
    call.master = state.parameters.data();
    call.first = state.first.data();
    call.second = state.second.data();
    call.count = kCount;
    step(*kernels, call);
    step_float32(*kernels, call.options, same, 0, kCount);
    EXPECT_EQ(state.parameters, same.parameters) << kernels->name;
    for (std::size_t i = 0; i < kCount; ++i) {
      // The nearest one of the neighbours; a tie goes to the even one.
      const double master = state.parameters[i];
      const auto error = [&](int offset) {
        return std::abs(widened(static_cast<std::uint16_t>(parameters[i] + offset)) - master);
      };
      EXPECT_LE(error(0), error(1)) << kernels->name << ", element " << i;
      EXPECT_LE(error(0), error(-1)) << kernels->name << ", element " << i;
      EXPECT_TRUE(parameters[i] % 2 == 0 || (error(0) < error(1) && error(0) < error(-1)));
    }
    EXPECT_EQ(parameters[kCount], 0x1234) << "nothing is written behind the end";
  }
}

TEST(OptimizerStepTables, ThereIsOneForEachInstructionSetOfThisProcessor) {
  ASSERT_EQ(usable_step_kernels().size(), usable_kernels().size());
  for (std::size_t i = 0; i < usable_kernels().size(); ++i) {
    EXPECT_STREQ(usable_step_kernels()[i]->name, usable_kernels()[i]->name);
  }
}

TEST(OptimizerStepMistakes, AreRefused) {
  const std::vector<float> gradient(4);
  std::vector<float> memory(4);
  const void* const gradients[] = {gradient.data()};
  StepCall good;
  good.options.kind = OptimizerKind::adam;
  good.gradients = gradients;
  good.parameters = good.first = good.second = memory.data();
  good.count = 0;
  EXPECT_NO_THROW(step(good));
  const auto refused = [&](auto change, const std::string& why) {
    StepCall bad = good;
    change(bad);
    try {
      step(bad);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused([](StepCall& c) { c.dtype = DType::float64; }, "neither float32 nor bfloat16");
  refused([](StepCall& c) { c.dtype = DType::bfloat16; }, "in float32, too");
  refused([](StepCall& c) { c.gradients = {}; }, "no gradient");
  refused([](StepCall& c) { c.options.step = 0; }, "from 1");
  refused([](StepCall& c) { c.options.beta2 = 1.0; }, "less than 1");
  refused([](StepCall& c) { c.parameters = nullptr; }, "of the parameters");
  refused([](StepCall& c) { c.first = nullptr; }, "first moment");
  refused([](StepCall& c) { c.second = nullptr; }, "second moment");
}

}  // namespace
}  // namespace perseus::host
