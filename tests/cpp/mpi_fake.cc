#include "mpi_fake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/messages/channel.h"
#include "transport/messages/transport.h"
#include "transport/mpi/network.h"

namespace perseus::testing {

void FakeNetwork::put(mpi::Comm comm, int from, int to, int tag, std::string bytes,
                      std::shared_ptr<std::atomic<bool>> received) {
  const std::scoped_lock lock(mutex_);
  queues_[{to, tag, from, comm}].push_back({std::move(bytes), std::move(received)});
  peers_[from].insert(to);
  peers_[to].insert(from);
}

std::set<int> FakeNetwork::peers_of(int rank) {
  const std::scoped_lock lock(mutex_);
  return peers_[rank];
}

bool FakeNetwork::take(mpi::Comm comm, int from, int to, int tag, std::string& bytes) {
  if (is_cut_) return false;
  const std::scoped_lock lock(mutex_);
  auto& queue = queues_[{to, tag, from, comm}];
  if (queue.empty()) return false;
  bytes = std::move(queue.front().bytes);
  if (queue.front().received) *queue.front().received = true;
  queue.pop_front();
  return true;
}

std::size_t FakeNetwork::in_progress() {
  const std::scoped_lock lock(mutex_);
  std::size_t count = 0;
  for (const auto& [key, queue] : queues_) count += queue.size();
  return count;
}

bool FakeNetwork::peek(int to, int tag, mpi::Arrival& arrival) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, queue] : queues_) {
    if (std::get<0>(key) != to || std::get<1>(key) != tag || queue.empty()) continue;
    arrival = {std::get<2>(key), static_cast<int>(queue.front().bytes.size())};
    return true;
  }
  return false;
}

void Outbox::add(std::function<void()> deliver) {
  constexpr std::int64_t kCalls = 3;
  const std::scoped_lock lock(mutex_);
  messages_.emplace_back(calls_ + kCalls, std::move(deliver));
}

void Outbox::progress() {
  const std::scoped_lock lock(mutex_);
  ++calls_;
  for (; !messages_.empty() && messages_.front().first <= calls_; messages_.pop_front()) messages_.front().second();
}

mpi::Request FakeApi::send(mpi::Comm comm, const void* data, int bytes, int to, int tag) {
  std::string content(static_cast<const char*>(data), static_cast<std::size_t>(bytes));
  if (outbox_ == nullptr) {
    network_.put(comm, rank_, to, tag, std::move(content));
  } else {
    outbox_->add([=, this] { network_.put(comm, rank_, to, tag, content); });
  }
  return 0;
}

mpi::Request FakeApi::send_until_received(mpi::Comm comm, const void* data, int bytes, int to, int tag) {
  auto received = std::make_shared<std::atomic<bool>>(false);
  network_.put(comm, rank_, to, tag, {static_cast<const char*>(data), static_cast<std::size_t>(bytes)}, received);
  until_received_[next_] = std::move(received);
  return next_++;
}

bool FakeApi::probe(mpi::Comm, int tag, mpi::Arrival& arrival) {
  if (outbox_ != nullptr) outbox_->progress();
  return network_.peek(rank_, tag, arrival);
}

mpi::Request FakeApi::receive(mpi::Comm comm, void* data, int bytes, int from, int tag) {
  receives_[next_] = {data, bytes, from, tag, comm};
  mpi::Request request = next_++;
  test(request);  // matches a message that is already there, so that a probe does not return it again
  return request;
}

// As in MPI, of several receives that match a message, the first posted one gets it.
bool FakeApi::test(mpi::Request& request) {
  if (outbox_ != nullptr) outbox_->progress();
  if (request == 0) return true;
  if (const auto sent = until_received_.find(request); sent != until_received_.end()) {
    if (!*sent->second) return false;
    until_received_.erase(sent);
    request = 0;
    return true;
  }
  const auto wanted = receives_.find(request);
  const auto receive = wanted->second;
  for (const auto& [id, earlier] : receives_) {
    if (id >= request) break;
    const bool same = earlier.from == receive.from && earlier.tag == receive.tag && earlier.comm == receive.comm;
    if (same) return false;
  }
  std::string bytes;
  if (!network_.take(receive.comm, receive.from, rank_, receive.tag, bytes)) return false;
  EXPECT_EQ(bytes.size(), static_cast<std::size_t>(receive.bytes)) << "tag " << receive.tag << " from " << receive.from;
  std::memcpy(receive.data, bytes.data(), bytes.size());
  receives_.erase(wanted);
  request = 0;
  return true;
}

bool FakeApi::abandon(mpi::Request& request, bool receiving) {
  const auto found = receives_.find(request);
  const bool lent = receiving && cannot_cancel_ && found != receives_.end();
  if (lent) abandoned_.push_back(found->second);
  receives_.erase(request);
  until_received_.erase(request);
  request = 0;
  return !lent;
}

std::size_t FakeApi::deliver_late() {
  for (const auto& receive : abandoned_) std::memset(receive.data, 0x5a, static_cast<std::size_t>(receive.bytes));
  return std::exchange(abandoned_, {}).size();
}

namespace {

// The communicators of a job. Each connect() of the same members makes the next one.
class Networks {
 public:
  FakeNetwork& get(const std::vector<int>& members, int number, bool control) {
    const std::scoped_lock lock(mutex_);
    auto& network = networks_[{members, number, control}];
    if (!network) network = std::make_unique<FakeNetwork>();
    return *network;
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::map<std::tuple<std::vector<int>, int, bool>, std::unique_ptr<FakeNetwork>> networks_;
};

class MessageFabric final : public Fabric {
 public:
  MessageFabric(std::shared_ptr<Networks> networks, int rank, Liveness& liveness, std::shared_ptr<Outbox> outbox)
      : networks_(std::move(networks)), rank_(rank), options_{.liveness = &liveness}, outbox_(std::move(outbox)) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& /*exchange*/) override {
    const std::vector<int> group(members.begin(), members.end());
    const auto place = std::find(group.begin(), group.end(), rank_);
    if (place == group.end()) return {};
    const int number = made_[group]++, rank = static_cast<int>(place - group.begin());
    const int size = static_cast<int>(group.size());
    const auto api = [&](bool control) -> mpi::Api& {
      apis_.push_back(std::make_unique<FakeApi>(networks_->get(group, number, control), rank, size, outbox_));
      return *apis_.back();
    };
    return {std::make_unique<messages::MessageTransport>(mpi::make_network(api(false), {0, 1, 2}), options_),
            std::make_unique<messages::MessageChannel>(mpi::make_network(api(true), {0}), options_, closing_channels_)};
  }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void release(void* memory) override { std::free(memory); }
  void make_progress() override {
    if (outbox_) outbox_->progress();
  }
  std::string description() const override { return "messages between threads"; }

 private:
  std::shared_ptr<Networks> networks_;
  int rank_;
  messages::WaitOptions options_;
  std::shared_ptr<Outbox> outbox_;
  std::map<std::vector<int>, int> made_;
  std::vector<std::unique_ptr<FakeApi>> apis_;
  messages::ClosingChannels closing_channels_;
};

}  // namespace

std::vector<std::unique_ptr<Fabric>> make_message_fabrics(int ranks, Liveness& liveness, bool outboxes) {
  const auto networks = std::make_shared<Networks>();
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int r = 0; r < ranks; ++r) {
    auto outbox = outboxes ? std::make_shared<Outbox>() : nullptr;
    fabrics.push_back(std::make_unique<MessageFabric>(networks, r, liveness, std::move(outbox)));
  }
  return fabrics;
}

}  // namespace perseus::testing
