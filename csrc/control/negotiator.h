// Decides, alike on all ranks of a group, what is executed next: pure logic, no I/O, no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "control/response_cache.h"
#include "control/tree.h"

namespace perseus {

struct NegotiatorOptions {
  std::int64_t cache_capacity = 16384;
  std::chrono::milliseconds stall_warning{60000};  // 0: never
  std::chrono::milliseconds stall_shutdown{0};     // 0: never
};

// Every rank has one. A node of the tree waits until all ranks below it have asked for a name, then reports it to
// its parent; the root turns complete names into a plan, which travels down unchanged. One thread at a time.
class Negotiator {
 public:
  using Clock = std::chrono::steady_clock;
  struct Outgoing {
    int to;
    std::string bytes;
  };

  Negotiator(Tree tree, NegotiatorOptions options);

  // What this rank does.
  void submit(const Request& request, Clock::time_point now);
  void join();
  void leave();
  // Somebody is blocked: what is reported next is not to be kept back anywhere.
  void urge() { urgent_ = true; }

  // A message of a neighbour in the tree. Throws Error(transport) on nonsense.
  void receive(int from, std::string_view bytes, Clock::time_point now);

  // Whether flush() has something to say.
  bool has_news() const;
  bool urgent() const { return urgent_; }

  // Reports or plans to send now. At the root this also decides.
  std::vector<Outgoing> flush(Clock::time_point now);

  // Of a rank that leaves before the root has said so. Its children would not hear what the root says afterwards.
  std::vector<Outgoing> last_words();

  // What this rank carries out next: one plan, in its order; empty when there is none. Plans are never taken together:
  // what shares a buffer is derived from the plan, and a rank that is behind must come to the same answer.
  std::vector<Decision> take_decisions();

  // Names or joins under way here: the engine then looks at the clock.
  bool waiting() const { return !entries_.empty() || open_repeats_ > 0 || !notes_.empty(); }

  // Looks for names that wait too long; news, if any, go out with the next flush.
  void check_stalls(Clock::time_point now);

  // At the root: a decision of its own, which goes out with the next plan.
  void propose(Decision decision) { extra_.push_back(std::move(decision)); }

  // For the timeline: who asked for what, as this node of the tree hears of it.
  struct Arrival {
    std::string name;
    std::vector<int> world_ranks;
  };
  void note_arrivals(bool wanted) { noting_arrivals_ = wanted; }
  std::vector<Arrival> take_arrivals() { return std::exchange(arrivals_, {}); }

  const Request& agreed(std::uint32_t id) const { return cache_.at(id); }

 private:
  // A name, not known under an id by all who ask, that not all ranks below have asked for. Source 0 is this rank,
  // source i + 1 is child i.
  struct Entry {
    std::vector<bool> have;
    std::vector<Claim> claims;
    Clock::time_point since;
    Clock::time_point warned;
  };
  // The same for a name that everybody who asked so far asked for by id: what happens at every step of a training.
  struct Repeat {
    bool open = false;  // somebody has asked
    std::vector<bool> have;
    std::size_t missing = 0;  // sources
    Clock::time_point since;
    Clock::time_point warned;
  };
  struct Waiting {
    StallNote note;
    Clock::time_point since;
    Clock::time_point warned{};
    bool due = false;    // a note came since the last warning
    bool fresh = false;  // and since the last look: others' may be on their way
  };

  std::size_t sources() const { return tree_.children.size() + 1; }
  std::size_t source_of(int child) const;
  std::vector<int> ranks_of(std::size_t source) const;
  std::vector<int> askers(std::size_t source, Verb verb) const;
  bool all_joined(std::size_t source) const;
  Entry& entry(const std::string& name, Clock::time_point now);
  void add_cached(std::size_t source, std::uint32_t id, Clock::time_point now);
  void add_claims(std::size_t source, std::vector<Claim> claims, Clock::time_point now);
  void note_arrival(std::size_t source, const std::string& name);
  Repeat& repeat(std::uint32_t id, Clock::time_point now);
  void turn_repeat_into_entry(std::uint32_t id);
  bool all_here(const std::vector<bool>& have) const;
  Decision farewell_of(int rank) const;
  void complete_if_ready(std::uint32_t id);
  void complete_if_ready(const std::string& name);
  void complete_all_ready();
  void receive_report(std::size_t source, const Report& report, Clock::time_point now);
  const std::vector<bool>* have_of(const std::string& name) const;
  std::vector<int> present(const std::vector<bool>& have) const;
  void check_stall(const Request& request, const std::vector<bool>& have, Clock::time_point since,
                   Clock::time_point& warned, Clock::time_point now);
  void check_ranks(const std::vector<int>& ranks) const;
  void check_ranks(const Report& report) const;
  void apply(Plan plan);
  void note_joined(int rank);
  Decision decide(const std::vector<Claim>& claims);
  Decision decide_again(std::uint32_t id);
  void decide_joined(std::vector<Decision>& plan);
  void hear_of_stall(StallNote note, Clock::time_point now);
  void forget_stall(const std::string& name);
  void warn_of_stalls(Clock::time_point now);
  void warn_of_stall(const Waiting& waiting, Clock::time_point now);
  std::vector<int> world_ranks_missing(const std::vector<int>& present) const;

  // In verb_mismatch.cc. What the caller named a request → the names it has with a verb in front → ranks that asked.
  using Calls = std::map<std::string, std::map<std::string, std::vector<int>>>;
  Calls settled_calls(Clock::time_point now) const;
  void check_verbs(Clock::time_point now);
  void fail_mismatch(const std::string& plain, const std::map<std::string, std::vector<int>>& names);
  void forget(const std::string& name);

  Tree tree_;
  NegotiatorOptions options_;
  ResponseCache cache_;
  std::unordered_map<std::string, Entry> entries_;
  std::vector<Repeat> repeats_;  // by id
  std::size_t open_repeats_ = 0;
  Report report_;                            // complete below, not reported (at the root: not decided) yet
  std::vector<Outgoing> relayed_;            // plans on their way down
  std::vector<Decision> extra_;              // root: warnings and closings to go out with the next plan
  std::deque<std::vector<Decision>> plans_;  // for this rank
  std::vector<bool> joined_;                 // by group rank
  bool any_joined_ = false;
  std::vector<int> join_order_;                         // root: in the order of arrival
  std::map<std::string, Waiting> notes_;                // root: stalled names by what was heard of them
  std::map<std::string, std::size_t> told_mismatches_;  // elsewhere: names the root was told of, and of how many ranks
  std::vector<Arrival> arrivals_;
  bool noting_arrivals_ = false;
  bool urgent_ = false;
  bool closed_ = false;
};

}  // namespace perseus
