// Finds the ranks that have not submitted a request for which one rank has waited too long.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/tree.h"

namespace perseus {

// Runs missing-rank queries over the negotiation tree, whose messages every rank reads anyway. A question goes up to
// the root, the root polls all ranks, the answers go up, and the result goes down to all. The first byte of each
// message differs from the first byte of every other control message.
class MissingRankQuery {
 public:
  using Clock = std::chrono::steady_clock;
  using HasSubmitted = std::function<bool(const std::string& name)>;

  struct Outgoing {
    int to = 0;
    std::string bytes;
  };

  // The result of a query that this rank has started.
  struct Result {
    std::uint64_t question = 0;
    std::vector<int> missing;  // group ranks that have not submitted the request or do not answer
  };

  // `has_submitted(name)` returns true if this rank has submitted the request and waits for it. The root waits for
  // answers until `timeout`. Engines answer at once, but on an overloaded machine one may not run for a while.
  MissingRankQuery(const Tree& tree, HasSubmitted has_submitted,
                   std::chrono::milliseconds timeout = std::chrono::milliseconds(3000))
      : tree_(tree), has_submitted_(std::move(has_submitted)), timeout_(timeout) {}

  // Returns true if the bytes are a message of a missing-rank query.
  static bool is_of(const std::string& bytes) { return !bytes.empty() && bytes[0] == kMark; }

  // Starts a query. `question` identifies it among the queries of this rank.
  void ask(std::uint64_t question, const std::string& name, Clock::time_point now);

  // Handles a message of another rank. Throws Error(transport) if it is malformed.
  void hear(std::string_view bytes, Clock::time_point now);

  // Returns true while this rank, as the root, waits for answers. look() ends the polls that have timed out.
  bool open() const { return !polls_.empty(); }
  void look(Clock::time_point now);

  std::vector<Outgoing> take_messages() { return std::exchange(outgoing_, {}); }
  std::vector<Result> take_results() { return std::exchange(results_, {}); }

 private:
  static constexpr char kMark = 0x7e;
  enum class Kind : std::uint8_t { question, poll, answer, result };

  struct Message {
    Kind kind = Kind::question;
    int asker = 0;
    std::uint64_t question = 0;
    std::string name;
    std::vector<int> ranks;  // answer: the sender if it has submitted the request, else empty; result: missing ranks
    int from = 0;            // answer: the rank that answers
  };

  // A query at the root that waits for answers.
  struct Poll {
    std::string name;
    std::vector<bool> answered, submitted;  // by rank
    Clock::time_point until;
  };
  using Key = std::pair<int, std::uint64_t>;  // asker, question

  static std::string encode(const Message& message);
  static Message decode(std::string_view bytes);
  void send_up(const Message& message) { outgoing_.push_back({tree_.parent, encode(message)}); }
  void send_down(const Message& message);
  void start_poll(const Message& question, Clock::time_point now);
  void record_answer(const Key& key, int rank, bool submitted);
  void finish(const Key& key, const Poll& poll);
  void deliver(const Message& result);

  const Tree& tree_;
  HasSubmitted has_submitted_;
  std::chrono::milliseconds timeout_;
  std::map<Key, Poll> polls_;
  std::vector<Outgoing> outgoing_;
  std::vector<Result> results_;
};

}  // namespace perseus
