#include "mpi_fake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/messages/control_messages.h"
#include "transport/mpi/fabric.h"

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

bool FakeNetwork::peek(mpi::Comm comm, int to, mpi::Envelope& envelope) {
  const std::scoped_lock lock(mutex_);
  for (auto found = queues_.lower_bound({to, 0, 0, 0}); found != queues_.end(); ++found) {
    const auto& [receiver, tag, sender, by] = found->first;
    if (receiver != to) return false;
    const auto& queue = found->second;
    if (by != comm || queue.empty()) continue;
    envelope = {.from = sender, .tag = tag, .bytes = static_cast<int>(queue.front().bytes.size())};
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
  const std::scoped_lock lock(mutex_);
  network_.put(comm, rank_, to, tag, {static_cast<const char*>(data), static_cast<std::size_t>(bytes)}, received);
  until_received_[next_] = std::move(received);
  return next_++;
}

bool FakeApi::probe(mpi::Comm comm, mpi::Envelope& envelope) {
  if (outbox_ != nullptr) outbox_->progress();
  const std::scoped_lock lock(mutex_);
  most_looks_ = std::max(most_looks_, ++looks_[std::this_thread::get_id()]);
  looked_.notify_all();
  return network_.peek(comm, rank_, envelope);
}

std::map<std::thread::id, int> FakeApi::wait_for_looks(int count) {
  std::unique_lock lock(mutex_);
  looks_.clear();
  most_looks_ = 0;
  looked_.wait(lock, [&] { return most_looks_ >= count; });
  return looks_;
}

std::size_t FakeApi::open_requests() {
  const std::scoped_lock lock(mutex_);
  return receives_.size();
}

void FakeApi::match_all() {
  const std::scoped_lock lock(mutex_);
  cannot_cancel_ = true;
}

mpi::Request FakeApi::receive(mpi::Comm comm, void* data, int bytes, int from, int tag) {
  const std::scoped_lock lock(mutex_);
  receives_[next_] = {data, bytes, from, tag, comm};
  mpi::Request request = next_++;
  test_locked(request);  // matches a message that is already there, so that a probe does not return it again
  return request;
}

bool FakeApi::test(mpi::Request& request) {
  const std::scoped_lock lock(mutex_);
  return test_locked(request);
}

// As in MPI, of several receives that match a message, the first posted one gets it.
bool FakeApi::test_locked(mpi::Request& request) {
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
  const std::scoped_lock lock(mutex_);
  const auto found = receives_.find(request);
  const bool lent = receiving && cannot_cancel_ && found != receives_.end();
  if (lent) abandoned_.push_back(found->second);
  receives_.erase(request);
  until_received_.erase(request);
  request = 0;
  return !lent;
}

std::size_t FakeApi::deliver_late() {
  const std::scoped_lock lock(mutex_);
  for (const auto& receive : abandoned_) std::memset(receive.data, 0x5a, static_cast<std::size_t>(receive.bytes));
  return std::exchange(abandoned_, {}).size();
}

namespace {

// A rank's fabric, with what it needs.
class MessageFabric final : public Fabric {
 public:
  MessageFabric(std::shared_ptr<FakeNetwork> network, int rank, int size, Liveness& liveness,
                std::shared_ptr<Outbox> outbox, int last_tag)
      : network_(std::move(network)), api_(*network_, rank, size, std::move(outbox)) {
    api_.set_last_tag(last_tag);
    fabric_ = mpi::connect_by(api_, 0, 3, closing_channels_, {.liveness = &liveness}, std::chrono::milliseconds(0));
  }

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    return fabric_->connect(members, exchange);
  }
  std::vector<Link> connect_groups(std::span<const Group> groups, const BootstrapAllgather& exchange) override {
    return fabric_->connect_groups(groups, exchange);
  }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void release(void* memory) override { std::free(memory); }
  void make_progress() override { fabric_->make_progress(); }
  std::string description() const override { return "messages between threads"; }

 private:
  std::shared_ptr<FakeNetwork> network_;
  FakeApi api_;
  messages::ClosingChannels closing_channels_;
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace

std::vector<std::unique_ptr<Fabric>> make_message_fabrics(int ranks, Liveness& liveness, bool outboxes, int last_tag) {
  const auto network = std::make_shared<FakeNetwork>();
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int r = 0; r < ranks; ++r) {
    auto outbox = outboxes ? std::make_shared<Outbox>() : nullptr;
    fabrics.push_back(std::make_unique<MessageFabric>(network, r, ranks, liveness, std::move(outbox), last_tag));
  }
  return fabrics;
}

}  // namespace perseus::testing
