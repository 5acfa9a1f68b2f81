// Who has asked for a name, and who has not: a question of one rank that has waited too long, answered by all.
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

// A question goes up the tree, from the root down to all, answers go up, and what the root knows then goes down again.
// So it travels where every rank listens anyway. Its messages begin with a byte that no other message begins with.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;
  using HasAsked = std::function<bool(const std::string& name)>;

  struct Outgoing {
    int to = 0;
    std::string bytes;
  };

  // The answer to a question of this rank.
  struct Result {
    std::uint64_t question = 0;
    std::vector<int> missing;  // group ranks that have not asked, or do not answer
  };

  // `has_asked`: whether this rank waits for a name. `patience`: how long the root waits for answers. Engines answer at
  // once, but on a machine with too much to do one may not run for a while.
  RollCall(const Tree& tree, HasAsked has_asked, std::chrono::milliseconds patience = std::chrono::milliseconds(3000))
      : tree_(tree), has_asked_(std::move(has_asked)), patience_(patience) {}

  static bool is_of(const std::string& bytes) { return !bytes.empty() && bytes[0] == kMark; }

  void ask(std::uint64_t question, const std::string& name, Clock::time_point now);

  // Throws Error(transport) for what makes no sense.
  void hear(std::string_view bytes, Clock::time_point now);

  // Whether answers are waited for; `look` then ends what has waited long enough.
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
    std::vector<int> ranks;  // answer: who has asked, or nobody; result: who is missing
    int from = 0;            // answer: whose it is
  };

  // At the root: a question whose answers come.
  struct Poll {
    std::string name;
    std::vector<bool> answered, asked;  // by rank
    Clock::time_point until;
  };
  using Key = std::pair<int, std::uint64_t>;  // asker, question

  static std::string encode(const Message& message);
  static Message decode(std::string_view bytes);
  void send_up(const Message& message) { outgoing_.push_back({tree_.parent, encode(message)}); }
  void send_down(const Message& message);
  void begin(const Message& question, Clock::time_point now);
  void note(const Key& key, int rank, bool asked);
  void end(const Key& key, const Poll& poll);
  void tell(const Message& result);

  const Tree& tree_;
  HasAsked has_asked_;
  std::chrono::milliseconds patience_;
  std::map<Key, Poll> polls_;
  std::vector<Outgoing> outgoing_;
  std::vector<Result> results_;
};

}  // namespace perseus
