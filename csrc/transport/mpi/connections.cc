#include "transport/mpi/connections.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// A group has the tags from its number times this on. They tell its kinds of messages apart (messages::Tag).
constexpr int kTagsOfGroup = 16;
constexpr int kControl = 0;

constexpr int kBits = 8;

bool has(const Numbers& numbers, int number) {
  const auto byte = static_cast<std::size_t>(number / kBits);
  return byte < numbers.size() && (static_cast<unsigned char>(numbers[byte]) >> number % kBits & 1) != 0;
}

void add(Numbers& numbers, int number) {
  const auto byte = static_cast<std::size_t>(number / kBits);
  if (numbers.size() <= byte) numbers.resize(byte + 1);
  numbers[byte] = static_cast<char>(static_cast<unsigned char>(numbers[byte]) | 1U << number % kBits);
}

void add_all(Numbers& numbers, const Numbers& more) {
  numbers.resize(std::max(numbers.size(), more.size()));
  for (std::size_t byte = 0; byte < more.size(); ++byte) {
    numbers[byte] = static_cast<char>(numbers[byte] | more[byte]);
  }
}

}  // namespace

std::vector<int> choose_numbers(std::span<const Group> groups, std::map<int, Numbers> used) {
  std::vector<int> chosen;
  chosen.reserve(groups.size());
  for (const auto& group : groups) {
    Numbers taken;
    for (const int member : group.members) {
      const auto found = used.find(member);
      if (found == used.end()) throw Error(ErrorKind::transport, "process set: a rank has not met the others");
      add_all(taken, found->second);
    }
    int number = 0;
    while (has(taken, number)) ++number;
    for (const int member : group.members) add(used[member], number);
    chosen.push_back(number);
  }
  return chosen;
}

// The messages of one group.
class GroupNetwork final : public messages::PolledNetwork {
 public:
  GroupNetwork(std::shared_ptr<Connections> connections, std::vector<int> members, int number)
      : connections_(std::move(connections)),
        api_(connections_->api()),
        members_(std::move(members)),
        rank_(member_of(connections_->rank())),
        number_(number),
        inbox_(connections_->inbox(number)) {
    connections_->open(number_);
  }

  std::string_view name() const override { return "MPI"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int streams() const override { return connections_->streams(); }

  Request send(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    const SendGuard::Call call(connections_->sends());
    return api_.send(comm(stream), data, static_cast<int>(bytes), world_rank(to), wire_tag(tag));
  }
  Request receive(int stream, void* data, std::size_t bytes, int from, int tag) override {
    return api_.receive(comm(stream), data, static_cast<int>(bytes), world_rank(from), wire_tag(tag));
  }
  bool test(Request& request) override { return api_.test(request); }
  bool abandon(Request& request, bool receiving) override { return api_.abandon(request, receiving); }

  bool take_arrival(messages::Arrival& arrival) override {
    connections_->poll(&inbox_);
    if (!inbox_.has_news.load(std::memory_order_acquire)) return false;
    const std::scoped_lock lock(connections_->inboxes_mutex_);
    arrival = std::move(inbox_.messages.front());
    inbox_.messages.pop_front();
    inbox_.has_news.store(!inbox_.messages.empty(), std::memory_order_release);
    arrival.from = member_of(arrival.from);
    return true;
  }
  Request send_control(const void* data, std::size_t bytes, int to) override {
    const SendGuard::Call call(connections_->sends());
    return api_.send(connections_->control(), data, static_cast<int>(bytes), world_rank(to), wire_tag(kControl));
  }
  Request send_control_until_received(const void* data, std::size_t bytes, int to) override {
    const SendGuard::Call call(connections_->sends());
    return api_.send_until_received(connections_->control(), data, static_cast<int>(bytes), world_rank(to),
                                    wire_tag(kControl));
  }

  void notify(Doorbell* doorbell) override {
    const std::scoped_lock lock(connections_->inboxes_mutex_);
    inbox_.doorbell = doorbell;
  }

  bool has_ended() override { return api_.finalized(); }
  void close() override { connections_->close(number_); }

 private:
  // Groups that work at the same time begin with different streams.
  Comm comm(int stream) const { return connections_->stream(stream + number_); }
  int wire_tag(int tag) const { return number_ * kTagsOfGroup + tag; }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  int member_of(int world_rank) const {
    return static_cast<int>(std::ranges::lower_bound(members_, world_rank) - members_.begin());
  }

  std::shared_ptr<Connections> connections_;
  Api& api_;
  std::vector<int> members_;
  int rank_, number_;
  Connections::Inbox& inbox_;  // kept until close()
};

Connections::Connections(Api& api, std::vector<Comm> comms, SendGuard* sends)
    : api_(api),
      comms_(std::move(comms)),
      sends_(sends),
      rank_(api.rank(comms_.front())),
      size_(api.size(comms_.front())),
      most_groups_(static_cast<int>((std::int64_t{api.last_tag()} + 1) / kTagsOfGroup)) {}

Connections::~Connections() {
  try {
    if (api_.finalized()) return;
    for (auto& [number, inbox] : inboxes_) {
      for (auto& message : inbox.messages) {
        // MPI may still write into the memory, which is then never freed.
        if (!api_.abandon(message.request, true)) static_cast<void>(message.bytes.release());
      }
    }
    if (!networks_.empty()) return;
    for (const auto comm : comms_) api_.free(comm);
  } catch (const Error&) {
    // The communicators are not used any more in either case.
  }
}

Numbers Connections::numbers() const {
  const std::scoped_lock lock(mutex_);
  Numbers numbers;
  for (const auto& [number, count] : networks_) add(numbers, number);
  return numbers;
}

Connections::Inbox& Connections::inbox(int number) {
  const std::scoped_lock lock(inboxes_mutex_);
  return inboxes_[number];
}

void Connections::open(int number) {
  const std::scoped_lock lock(mutex_);
  ++networks_[number];
}

void Connections::close(int number) {
  const std::scoped_lock lock(mutex_);
  if (--networks_.at(number) > 0) return;
  networks_.erase(number);
  const std::scoped_lock inboxes_lock(inboxes_mutex_);
  inboxes_.erase(number);
}

// The lock is held until the message is received: no other thread receives it, or a later one of the same sender
// before.
void Connections::poll(const Inbox* own) {
  const std::unique_lock lock(inboxes_mutex_, std::try_to_lock);
  if (!lock) return;
  for (Envelope envelope; api_.probe(control(), envelope);) {
    auto& inbox = inboxes_[envelope.tag / kTagsOfGroup];
    auto& message = inbox.messages.emplace_back(messages::Arrival{
        envelope.from, std::make_unique<std::string>(static_cast<std::size_t>(envelope.bytes), '\0')});
    message.request = api_.receive(control(), message.bytes->data(), envelope.bytes, envelope.from, envelope.tag);
    inbox.has_news.store(true, std::memory_order_release);
    if (inbox.doorbell != nullptr && &inbox != own) inbox.doorbell->notify();
  }
}

std::unique_ptr<messages::PolledNetwork> make_network(std::shared_ptr<Connections> connections,
                                                      std::vector<int> members, int number) {
  return std::make_unique<GroupNetwork>(std::move(connections), std::move(members), number);
}

std::unique_ptr<messages::PolledNetwork> make_network(Api& api, std::vector<Comm> comms, SendGuard* sends) {
  auto connections = std::make_shared<Connections>(api, std::move(comms), sends);
  std::vector<int> everybody(static_cast<std::size_t>(connections->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return make_network(std::move(connections), std::move(everybody), 0);
}

}  // namespace perseus::mpi
