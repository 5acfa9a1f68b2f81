// Tests that the search finds and keeps faster values, and that samples are whole steps.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>

#include "tune/autotuner.h"
#include "tune/search.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

constexpr Tunables kStart = {64, 20, 8, 4};

Search::Candidates some_candidates() { return {{{1, 16, 64, 256}, {0, 5, 100}, {2, 4, 16}, {1, 2}}}; }

// Measures until the search ends, and returns the number of samples.
int run(Search& search, const std::function<double(const Tunables&)>& speed) {
  int samples = 0;
  for (; !search.finished() && samples < 1000; ++samples) search.add(speed(search.trying()));
  return samples;
}

TEST(TuneSearch, FindsTheBestValueOfEachTunable) {
  Search search(kStart, some_candidates());
  const auto samples = run(search, [](const Tunables& t) {
    return 100.0 + (t[0] == 16 ? 10 : 0) +
           (t[1] == 0   ? 5
            : t[1] == 5 ? 20
                        : 0) -
           static_cast<double>(t[2]) + static_cast<double>(t[3]);
  });
  EXPECT_EQ(search.trying(), (Tunables{16, 5, 2, 4}));
  EXPECT_LE(samples, 60);
}

TEST(TuneSearch, KeepsTheInitialValuesIfNothingIsBetter) {
  Search search(kStart, some_candidates());
  run(search, [](const Tunables& t) { return t == kStart ? 100.0 : 99.0; });
  EXPECT_EQ(search.trying(), kStart);
}

TEST(TuneSearch, NoiseDoesNotReplaceValues) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(100, 0.5);
  Search search(kStart, some_candidates());
  run(search, [&](const Tunables&) { return noise(random); });
  EXPECT_EQ(search.trying(), kStart);
}

// Values that seem better because the machine became faster are compared with the initial values again.
TEST(TuneSearch, AChangeInTheMachinesSpeedDoesNotDecide) {
  double speed = 100;
  Search search(kStart, some_candidates());
  run(search, [&](const Tunables& t) { return (speed *= 1.03) * (t == kStart ? 1.05 : 1.0); });
  EXPECT_EQ(search.trying(), kStart);
}

TEST(TuneSearch, NothingIsTriedWithoutCandidates) {
  Search search(kStart, {});
  EXPECT_LE(run(search, [](const Tunables&) { return 1.0; }), 3);
  EXPECT_EQ(search.trying(), kStart);
}

class Autotuners : public ::testing::Test {
 protected:
  // Makes a step with two tensors that takes `took`.
  void step(Autotuner& tuner, std::chrono::microseconds took) {
    for (const auto* name : {"first", "second"}) {
      now_ += took / 2;
      take(tuner.executed(name, 1000, now_), tuner);
    }
  }
  void take(const std::optional<Tunables>& values, Autotuner& tuner) {
    if (!values) return;
    in_use_ = *values;
    tuner.applied();
    ++changes_;
  }

  Autotuner::Clock::time_point now_{};
  Tunables in_use_ = {64 << 20, 20, 1 << 18, 1};
  int changes_ = 0;
};

TEST_F(Autotuners, FindTheFastestSettings) {
  const auto path = std::filesystem::temp_directory_path() / ("perseus_tune_" + std::to_string(getpid()) + ".csv");
  Autotuner tuner({.log = path}, in_use_);
  take(tuner.executed("only at the beginning", 1 << 30, now_), tuner);
  int steps = 0;
  for (; !tuner.finished() && steps < 2000; ++steps) step(tuner, in_use_[0] == 4 << 20 ? 500us : 1000us);
  EXPECT_TRUE(tuner.finished());
  EXPECT_EQ(in_use_, (Tunables{4 << 20, 20, 1 << 18, 1}));
  EXPECT_LT(steps, 800);
  // The values do not change any more.
  const int changes = changes_;
  for (int i = 0; i < 100; ++i) step(tuner, 1000us);
  EXPECT_EQ(changes_, changes);

  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const auto log = text.str();
  EXPECT_TRUE(
      log.starts_with("sample,fusion_threshold_bytes,batching_delay_us,chunk_bytes,streams,steps,bytes,seconds,"));
  // Ten steps of 2000 bytes take 10 ms, or 5 ms.
  EXPECT_NE(log.find("1,67108864,20,262144,1,10,20000,0.01,2000000,warmup"), std::string::npos) << log;
  EXPECT_NE(log.find(",4194304,20,262144,1,10,20000,0.005,4000000,trial"), std::string::npos) << log;
  EXPECT_NE(log.find(",kept"), std::string::npos);
  std::filesystem::remove(path);
}

TEST_F(Autotuners, KeepFixedSettings) {
  Autotuner tuner({.fixed = {true, true, true, true}}, in_use_);
  for (int i = 0; i < 500; ++i) step(tuner, 1000us);
  EXPECT_TRUE(tuner.finished());
  EXPECT_EQ(in_use_, (Tunables{64 << 20, 20, 1 << 18, 1}));
}

TEST_F(Autotuners, NamesWithCountersAreMeasuredByTime) {
  Autotuner tuner({}, in_use_);
  for (int i = 0; i < 3000 && !tuner.finished(); ++i) {
    now_ += 100ms;
    take(tuner.executed("noname." + std::to_string(i), 1000, now_), tuner);
  }
  EXPECT_TRUE(tuner.finished());
}

}  // namespace
}  // namespace perseus
