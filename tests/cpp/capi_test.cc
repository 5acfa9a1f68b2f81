// Tests the table of C functions in a job with one rank, as native code of a framework uses it.
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "capi/api.h"
#include "capi/callbacks.h"
#include "capi/handles.h"
#include "engine/session/runtime.h"

namespace perseus {
namespace {

// The outcome that a callback received.
struct Outcome {
  int error = -2;
  std::string message;
  std::vector<std::vector<float>> results;
  std::vector<std::int64_t> splits;
  std::int64_t number = -1;
  void* kept = nullptr;
  const float* kept_data = nullptr;
};

struct Waiter {
  std::promise<Outcome> promise;

  static void done(void* context, const PerseusOutcome* outcome) {
    Outcome seen;
    seen.error = outcome->error;
    seen.message = outcome->message;
    seen.number = outcome->number;
    for (int i = 0; i < outcome->result_count; ++i) {
      const auto& result = outcome->results[i];
      std::size_t count = 1;
      for (int d = 0; d < result.dimensions; ++d) count *= static_cast<std::size_t>(result.shape[d]);
      const auto* values = static_cast<const float*>(result.data);
      seen.results.emplace_back(values, values + count);
      seen.kept_data = values;
    }
    seen.splits.assign(outcome->received_splits, outcome->received_splits + outcome->split_count);
    seen.kept = c_api().retain(outcome->work);
    static_cast<Waiter*>(context)->promise.set_value(std::move(seen));
  }
};

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    BootstrapOptions options;
    options.environment.lookup = [](std::string_view) { return std::nullopt; };
    start_session(Config::read({}), options);
  }
  void TearDown() override {
    if (outcome_.kept != nullptr) c_api().release(outcome_.kept);
    stop_session();
    callbacks().end(std::chrono::seconds(10));
  }

  PerseusRequest request(PerseusVerb verb, const char* name) {
    tensor_ = {values_.data(), static_cast<std::int32_t>(DType::float32), 1, shape_.data()};
    PerseusRequest args{};
    args.verb = verb;
    args.name = name;
    args.tensor_count = 1;
    args.inputs = &tensor_;
    args.reduce = {PERSEUS_OP_SUM, 0, 1, 1, PERSEUS_SAME_DTYPE};
    args.done = &Waiter::done;
    args.context = &waiter_;
    return args;
  }

  const Outcome& submit(const PerseusRequest& args) {
    std::array<char, 200> message{};
    EXPECT_EQ(c_api().submit(&args, message.data(), message.size()), PERSEUS_OK) << message.data();
    return outcome_ = waiter_.promise.get_future().get();
  }

  std::array<float, 4> values_{1, 2, 3, 4};
  std::array<std::int64_t, 1> shape_{4};
  PerseusTensor tensor_{};
  Waiter waiter_;
  Outcome outcome_;
};

TEST_F(CApi, AllreduceInPlaceIsScaled) {
  auto args = request(PERSEUS_ALLREDUCE, "a");
  args.reduce.prescale = 2;
  args.reduce.average = 1;
  EXPECT_EQ(submit(args).error, PERSEUS_OK) << outcome_.message;
  EXPECT_EQ(values_, (std::array<float, 4>{2, 4, 6, 8}));
}

TEST_F(CApi, AllreduceIntoAnotherTensor) {
  std::array<float, 4> target{};
  std::array<void*, 1> outputs{target.data()};
  auto args = request(PERSEUS_ALLREDUCE, "a");
  args.outputs = outputs.data();
  EXPECT_EQ(submit(args).error, PERSEUS_OK);
  EXPECT_EQ(target, values_);
}

TEST_F(CApi, RetainedResultsOutliveTheSession) {
  EXPECT_EQ(submit(request(PERSEUS_ALLGATHER, "g")).results, (std::vector<std::vector<float>>{{1, 2, 3, 4}}));
  stop_session();
  EXPECT_EQ(outcome_.kept_data[3], 4.0F);
}

TEST_F(CApi, AlltoallReturnsSplits) {
  const std::array<std::int64_t, 1> splits{3};
  auto args = request(PERSEUS_ALLTOALL, "s");
  args.splits = splits.data();
  EXPECT_EQ(submit(args).splits, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(outcome_.results.at(0), (std::vector<float>{1, 2, 3}));
}

TEST_F(CApi, JoinReturnsTheLastRank) { EXPECT_EQ(submit(request(PERSEUS_JOIN, "")).number, 0); }

TEST_F(CApi, RunReturnsAfterItsCallback) {
  for (const auto verb : {PERSEUS_ALLREDUCE, PERSEUS_JOIN}) {
    Waiter waiter;
    auto args = request(verb, "r");
    args.context = &waiter;
    EXPECT_EQ(c_api().run(&args, nullptr, 0), PERSEUS_OK);
    auto seen = waiter.promise.get_future();
    ASSERT_EQ(seen.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    c_api().release(seen.get().kept);
  }
}

TEST_F(CApi, ARejectedRequestHasATextAndNoCallback) {
  auto args = request(PERSEUS_BROADCAST, "grad");
  args.root = 5;
  std::array<char, 24> message{};
  EXPECT_EQ(c_api().submit(&args, message.data(), message.size()),
            static_cast<std::int32_t>(ErrorKind::invalid_argument));
  EXPECT_STREQ(message.data(), "broadcast 'grad': root ");  // cut to the capacity
  args.root = 0;
  EXPECT_EQ(submit(args).error, PERSEUS_OK) << "the name of a rejected request must be usable again";
}

TEST_F(CApi, RanksOfSets) {
  EXPECT_EQ(c_api().rank(0), 0);
  EXPECT_EQ(c_api().size(0), 1);
  EXPECT_EQ(c_api().local_size(), 1);
  EXPECT_EQ(c_api().size(9), -1);
  stop_session();
  EXPECT_EQ(c_api().rank(0), -1);
  auto args = request(PERSEUS_ALLREDUCE, "late");
  std::array<char, 100> message{};
  EXPECT_EQ(c_api().run(&args, message.data(), message.size()), static_cast<std::int32_t>(ErrorKind::not_initialized));
  EXPECT_NE(std::string(message.data()).find("init()"), std::string::npos);
}

TEST_F(CApi, AllocatedMemoryOutlivesTheSession) {
  void* data = nullptr;
  void* kept = c_api().allocate(sizeof(float), &data, nullptr, 0);
  ASSERT_NE(kept, nullptr);
  stop_session();
  *static_cast<float*>(data) = 3;
  c_api().release(kept);
  std::array<char, 100> message{};
  EXPECT_EQ(c_api().allocate(1, &data, message.data(), message.size()), nullptr);
  EXPECT_NE(std::string(message.data()).find("init()"), std::string::npos);
}

TEST_F(CApi, ACallbackMaySubmit) {
  struct Chain {
    PerseusRequest args;
    int left;
    std::promise<void> finished;
    static void done(void* context, const PerseusOutcome* outcome) {
      auto& self = *static_cast<Chain*>(context);
      EXPECT_EQ(outcome->error, PERSEUS_OK) << outcome->message;
      if (--self.left == 0) return self.finished.set_value();
      EXPECT_EQ(c_api().submit(&self.args, nullptr, 0), PERSEUS_OK);
    }
  } chain{request(PERSEUS_ALLREDUCE, "again"), 100, {}};
  chain.args.done = &Chain::done;
  chain.args.context = &chain;
  ASSERT_EQ(c_api().submit(&chain.args, nullptr, 0), PERSEUS_OK);
  chain.finished.get_future().get();
}

class CApiHandles : public CApi {
 protected:
  void* start(const char* name, PerseusBegin begin) {
    auto args = request(PERSEUS_ALLREDUCE, name);
    args.reduce.prescale = 2;
    void* handle = nullptr;
    std::array<char, 200> message{};
    EXPECT_EQ(c_api().start(&args, "all_reduce", begin, &handle, message.data(), message.size()), PERSEUS_OK)
        << message.data();
    return handle;
  }

  static constexpr std::int64_t kLong = 10'000'000'000;
};

TEST_F(CApiHandles, WaitReturnsTheOutcome) {
  for (const auto begin : {PERSEUS_BEGIN_NOW, PERSEUS_BEGIN_AT_WAIT}) {
    values_ = {1, 2, 3, 4};
    auto* handle = start("h", begin);
    EXPECT_EQ(c_api().wait(handle, kLong), PERSEUS_OK);
    EXPECT_EQ(c_api().wait(handle, 0), PERSEUS_OK);
    EXPECT_NE(c_api().is_done(handle), 0);
    EXPECT_EQ(values_, (std::array<float, 4>{2, 4, 6, 8}));
    c_api().drop(handle, nullptr, nullptr);
  }
}

TEST_F(CApiHandles, WorkIsExecutedThoughNobodyWaits) {
  auto* handle = start("s", PERSEUS_BEGIN_NOW);
  const auto* completion = static_cast<NativeHandle*>(handle)->handle.completion.get();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!completion->done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(completion->done());
  c_api().drop(handle, nullptr, nullptr);
}

TEST_F(CApiHandles, DropCallsBackWhenTheWorkIsDone) {
  for (const auto begin : {PERSEUS_BEGIN_NOW, PERSEUS_BEGIN_AT_WAIT}) {
    for (const bool waits : {false, true}) {
      values_ = {1, 2, 3, 4};
      Waiter waiter;
      auto* handle = start("d", begin);
      if (waits) {
        EXPECT_EQ(c_api().wait(handle, kLong), PERSEUS_OK);
      }
      c_api().drop(handle, &Waiter::done, &waiter);
      auto seen = waiter.promise.get_future().get();
      EXPECT_EQ(seen.error, PERSEUS_OK) << seen.message;
      EXPECT_EQ(values_[3], 8);
      c_api().release(seen.kept);
    }
  }
}

TEST_F(CApiHandles, ARejectedRequestHasNoHandle) {
  auto args = request(PERSEUS_ALLREDUCE, "a");
  void* handle = nullptr;
  std::array<char, 200> message{};
  EXPECT_EQ(c_api().start(&args, nullptr, 7, &handle, message.data(), message.size()),
            static_cast<std::int32_t>(ErrorKind::invalid_argument));
  EXPECT_STREQ(message.data(), "no PerseusBegin has the number 7");
  stop_session();
  EXPECT_EQ(c_api().start(&args, nullptr, PERSEUS_BEGIN_NOW, &handle, message.data(), message.size()),
            static_cast<std::int32_t>(ErrorKind::not_initialized));
  EXPECT_EQ(handle, nullptr);
}

}  // namespace
}  // namespace perseus
