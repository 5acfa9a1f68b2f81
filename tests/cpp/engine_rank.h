// One rank of a job of threads, with its own engine and verbs that check their results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "control_requests.h"
#include "engine/process_set_engine.h"
#include "transport_world.h"

namespace perseus::testing {

// A collective in progress with its memory.
struct Started {
  std::string name;
  std::vector<std::int64_t> in, out;
  std::shared_ptr<Completion> completion;
  bool notifies = true;         // the submission notifies the driver
  std::function<void()> check;  // called after success
};

class EngineRank {
 public:
  // `hosts` has the host of each member; empty if all are on one host.
  EngineRank(World& world, std::vector<int> members, const EngineOptions& options = {}, std::vector<int> hosts = {}) {
    hosts.resize(members.size(), 0);
    auto link = world.connect(members);
    const auto mine = std::find(members.begin(), members.end(), world.rank);
    if (mine == members.end()) return;
    engine_ = std::make_unique<ProcessSetEngine>(
        make_tree(static_cast<int>(mine - members.begin()), hosts, members), std::move(link), options, world.liveness,
        [this](const Request& request, Completion* completion) { return set_verb(request, completion); });
  }

  explicit EngineRank(World& world, const EngineOptions& options = {}, std::vector<int> hosts = {})
      : EngineRank(world, everybody(world), options, std::move(hosts)) {}

  static std::vector<int> everybody(const World& world) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  ProcessSetEngine& engine() { return *engine_; }
  bool is_member() const { return engine_ != nullptr; }

  // Reduces (rank + 1) * i for element i over the ranks. Averages if `divisor` is given.
  std::unique_ptr<Started> allreduce(const std::string& name, std::int64_t count, std::int64_t divisor = 1,
                                     bool ring = true) {
    auto work = make_work(Verb::allreduce, name);
    auto started = std::make_unique<Started>();
    started->notifies = ring;
    started->in.resize(static_cast<std::size_t>(count));
    started->out.resize(started->in.size());
    for (std::size_t i = 0; i < started->in.size(); ++i) started->in[i] = own(i);
    work->request.scale.divisor = divisor;
    add(*work, started->in, started->out);
    started->check = [this, divisor, at = started.get()] {
      const auto total = engine_->size() * (engine_->size() + 1) / 2;
      for (std::size_t i = 0; i < at->out.size(); ++i) {
        ASSERT_EQ(at->out[i], total * static_cast<std::int64_t>(i) / divisor) << at->name << ", element " << i;
      }
    };
    return start(std::move(work), std::move(started));
  }

  std::unique_ptr<Started> broadcast(const std::string& name, std::int64_t count, int root) {
    auto work = make_work(Verb::broadcast, name);
    auto started = std::make_unique<Started>();
    started->in.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < started->in.size(); ++i) started->in[i] = own(i);
    work->request.root = root;
    add(*work, started->in, started->in);
    started->check = [root, at = started.get()] {
      for (std::size_t i = 0; i < at->in.size(); ++i) ASSERT_EQ(at->in[i], (root + 1) * static_cast<std::int64_t>(i));
    };
    return start(std::move(work), std::move(started));
  }

  // Rank r contributes r + `rows` rows of one element.
  std::unique_ptr<Started> allgather(const std::string& name, std::int64_t rows) {
    auto work = make_work(Verb::allgather, name);
    auto started = std::make_unique<Started>();
    started->in.assign(static_cast<std::size_t>(engine_->rank() + rows), engine_->rank());
    add(*work, started->in);
    started->check = [this, rows, at = started.get()] {
      std::vector<std::int64_t> expected;
      for (int r = 0; r < engine_->size(); ++r) expected.insert(expected.end(), static_cast<std::size_t>(r + rows), r);
      EXPECT_EQ(values_of(*at->completion->results.at(0)), expected);
    };
    return start(std::move(work), std::move(started));
  }

  // Rank r sends r + s rows to rank s.
  std::unique_ptr<Started> alltoall(const std::string& name) {
    auto work = make_work(Verb::alltoall, name);
    auto started = std::make_unique<Started>();
    for (int s = 0; s < engine_->size(); ++s) {
      work->splits.push_back(engine_->rank() + s);
      started->in.insert(started->in.end(), static_cast<std::size_t>(engine_->rank() + s), 100 * engine_->rank() + s);
    }
    add(*work, started->in);
    started->check = [this, at = started.get()] {
      std::vector<std::int64_t> expected, splits;
      for (int r = 0; r < engine_->size(); ++r) {
        splits.push_back(r + engine_->rank());
        expected.insert(expected.end(), static_cast<std::size_t>(r + engine_->rank()), 100 * r + engine_->rank());
      }
      EXPECT_EQ(values_of(*at->completion->results.at(0)), expected);
      EXPECT_EQ(at->completion->received_splits, splits);
    };
    return start(std::move(work), std::move(started));
  }

  std::unique_ptr<Started> reduce_scatter(const std::string& name, std::int64_t rows) {
    auto work = make_work(Verb::reduce_scatter, name);
    auto started = std::make_unique<Started>();
    started->in.resize(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < started->in.size(); ++i) started->in[i] = own(i);
    add(*work, started->in);
    started->check = [this, rows, at = started.get()] {
      const auto size = engine_->size(), rank = engine_->rank();
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0, owner = 0, left = rows / size + (rows % size > 0); i < rows; ++i, --left) {
        while (left == 0) ++owner, left = rows / size + (owner < rows % size);
        if (owner == rank) expected.push_back(size * (size + 1) / 2 * i);
      }
      EXPECT_EQ(values_of(*at->completion->results.at(0)), expected);
    };
    return start(std::move(work), std::move(started));
  }

  std::unique_ptr<Started> barrier(const std::string& name) {
    return start(make_work(Verb::barrier, name), std::make_unique<Started>());
  }

  std::unique_ptr<Started> about_sets(const std::string& name, std::vector<std::int64_t> ranks) {
    auto work = make_work(Verb::add_process_set, name);
    work->request.ranks = std::move(ranks);
    return start(std::move(work), std::make_unique<Started>());
  }

  // Waits, driving the engine.
  Status outcome(Started& started) {
    engine_->wait(*started.completion, started.notifies);
    return started.completion->status();
  }
  // Waits while the communication thread drives.
  Status outcome_by_engine(Started& started) {
    while (!started.completion->done()) started.completion->wait(std::chrono::seconds(1));
    return started.completion->status();
  }
  void finish(Started& started, bool by_engine = false) {
    const auto status = by_engine ? outcome_by_engine(started) : outcome(started);
    ASSERT_TRUE(status.ok()) << started.name << ": " << status.text();
    if (started.check) started.check();
  }

 private:
  std::int64_t own(std::size_t i) const { return (engine_->rank() + 1) * static_cast<std::int64_t>(i); }

  static std::shared_ptr<WorkItem> make_work(Verb verb, const std::string& name) {
    auto work = std::make_shared<WorkItem>();
    work->request.verb = verb;
    work->request.name = name;
    return work;
  }

  static void add(WorkItem& work, std::vector<std::int64_t>& in) {
    work.inputs.push_back(in.data());
    work.request.members.push_back({DType::int64, {static_cast<std::int64_t>(in.size())}});
  }
  static void add(WorkItem& work, std::vector<std::int64_t>& in, std::vector<std::int64_t>& out) {
    add(work, in);
    work.outputs.push_back(out.data());
  }
  static std::vector<std::int64_t> values_of(const Result& result) {
    std::vector<std::int64_t> values(result.bytes() / sizeof(std::int64_t));
    if (!values.empty()) std::memcpy(values.data(), result.data(), result.bytes());
    return values;
  }

  std::unique_ptr<Started> start(std::shared_ptr<WorkItem> work, std::unique_ptr<Started> started) {
    started->name = work->request.name;
    started->completion = completion_of(work);
    engine_->submit(std::move(work), started->notifies ? Notify::now : Notify::never);
    return started;
  }

  Status set_verb(const Request& request, Completion* completion) {
    if (request.ranks.empty()) return {ErrorKind::invalid_argument, "no ranks"};
    completion->number = 7;
    return {};
  }

  std::unique_ptr<ProcessSetEngine> engine_;
};

}  // namespace perseus::testing
