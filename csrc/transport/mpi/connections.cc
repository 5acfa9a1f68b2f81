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
  GroupNetwork(std::shared_ptr<Connections> connections, std::vector<int> members, int number, bool is_control)
      : connections_(std::move(connections)),
        api_(connections_->api()),
        members_(std::move(members)),
        rank_(member_of(connections_->rank())),
        number_(number),
        is_control_(is_control) {
    connections_->open(number_);
  }

  std::string_view name() const override { return "MPI"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int streams() const override { return is_control_ ? 1 : connections_->streams(); }

  Request send(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    const SendGuard::Call call(connections_->sends());
    return api_.send(comm(stream), data, static_cast<int>(bytes), world_rank(to), wire_tag(tag));
  }
  Request send_until_received(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    const SendGuard::Call call(connections_->sends());
    return api_.send_until_received(comm(stream), data, static_cast<int>(bytes), world_rank(to), wire_tag(tag));
  }
  Request receive(int stream, void* data, std::size_t bytes, int from, int tag) override {
    return api_.receive(comm(stream), data, static_cast<int>(bytes), world_rank(from), wire_tag(tag));
  }
  bool test(Request& request) override { return api_.test(request); }
  bool abandon(Request& request, bool receiving) override { return api_.abandon(request, receiving); }
  bool probe(int tag, Arrival& arrival) override {
    if (!api_.probe(comm(0), wire_tag(tag), arrival)) return false;
    arrival.from = member_of(arrival.from);
    return true;
  }

  bool has_ended() override { return api_.finalized(); }
  void close() override { connections_->close(number_); }

 private:
  // Groups that work at the same time begin with different streams.
  Comm comm(int stream) const { return is_control_ ? connections_->control() : connections_->stream(stream + number_); }
  int wire_tag(int tag) const { return number_ * kTagsOfGroup + tag; }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  int member_of(int world_rank) const {
    return static_cast<int>(std::ranges::lower_bound(members_, world_rank) - members_.begin());
  }

  std::shared_ptr<Connections> connections_;
  Api& api_;
  std::vector<int> members_;
  int rank_, number_;
  bool is_control_;
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
    if (!networks_.empty() || api_.finalized()) return;
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

void Connections::open(int number) {
  const std::scoped_lock lock(mutex_);
  ++networks_[number];
}

void Connections::close(int number) {
  const std::scoped_lock lock(mutex_);
  if (--networks_.at(number) == 0) networks_.erase(number);
}

std::unique_ptr<messages::PolledNetwork> make_data_network(std::shared_ptr<Connections> connections,
                                                           std::vector<int> members, int number) {
  return std::make_unique<GroupNetwork>(std::move(connections), std::move(members), number, false);
}

std::unique_ptr<messages::PolledNetwork> make_control_network(std::shared_ptr<Connections> connections,
                                                              std::vector<int> members, int number) {
  return std::make_unique<GroupNetwork>(std::move(connections), std::move(members), number, true);
}

std::unique_ptr<messages::PolledNetwork> make_network(Api& api, Comm comm, SendGuard* sends) {
  auto connections = std::make_shared<Connections>(api, std::vector{comm}, sends);
  std::vector<int> everybody(static_cast<std::size_t>(connections->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return make_control_network(std::move(connections), std::move(everybody), 0);
}

}  // namespace perseus::mpi
