// Agrees with the other ranks of a group on what is executed next. Pure logic without I/O or a clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "control/response_cache.h"
#include "control/tree.h"
#include "stall/stalled_requests.h"

namespace perseus {

struct NegotiatorOptions {
  std::int64_t cache_capacity = 16384;
  StallTimes stalls = {};
};

// One rank's part in the negotiation. A node of the tree waits until all ranks below it have submitted a request and
// then reports the request to its parent. The root lists complete requests in a plan, which goes down the tree
// unchanged. One thread at a time.
class Negotiator final : private OpenRequests {
 public:
  using Clock = OpenRequests::Clock;
  struct Outgoing {
    int to;
    std::string bytes;
  };

  Negotiator(Tree tree, NegotiatorOptions options);
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // Records what this rank submits.
  void submit(const Request& request, Clock::time_point now);
  // Makes the request of this name that this rank has submitted fail on all ranks, unless the root has decided on it.
  // `request` must not agree with it; the error text has both.
  void contradict(const Request& request) { add_contradiction(0, {request, {tree_.rank}}); }
  void join();
  void leave();
  // Marks the next report as urgent, because a caller is blocked: no node delays it.
  void request_flush() { urgent_ = true; }

  // Handles a message of a neighbour in the tree. Throws Error(transport) if it is malformed.
  void receive(int from, std::string_view bytes, Clock::time_point now);

  // Returns true if flush() has something to send or to decide.
  bool has_news() const;
  bool urgent() const { return urgent_; }

  // Returns the reports and plans to send now. The root also makes its decisions here.
  std::vector<Outgoing> flush(Clock::time_point now);

  // Returns the messages by which a rank announces that it leaves before the root has closed the group. The rank's
  // children get one each, because later plans of the root cannot reach them through this rank.
  std::vector<Outgoing> shutdown_messages();

  // Returns the decisions of the next plan in their order, or none. The decisions of two plans are never merged: ranks
  // derive batches from one plan, and a rank that is behind must derive the same batches.
  std::vector<Decision> take_decisions();
  bool has_decisions() const { return !plans_.empty(); }

  // Returns true while a request waits for other ranks; the engine then calls check_stalls().
  bool waiting() const { return !entries_.empty() || open_repeats_ > 0 || stalled_.any(); }

  // Looks for requests that wait too long. The next flush() sends what it finds.
  void check_stalls(Clock::time_point now) {
    if (!closed_) stalled_.check(now);
  }

  // Returns true if ranks may wait for each other with different verbs.
  bool suspects() const { return stalled_.suspects(); }
  // Records that a thread of this rank waits for the request of this name. The caller has executed all decisions, so
  // the request is not decided.
  void record_waiter(const std::string& name) { stalled_.record_waiter(name); }

  // Adds a decision to the next plan. Called at the root only.
  void propose(Decision decision) { extra_.push_back(std::move(decision)); }

  // A submission as this node of the tree learns of it, for the timeline.
  struct Arrival {
    std::string name;
    std::vector<int> world_ranks;
  };
  void note_arrivals(bool wanted) { recording_arrivals_ = wanted; }
  std::vector<Arrival> take_arrivals() { return std::exchange(arrivals_, {}); }

 private:
  // A name that not all ranks below have submitted yet. Source 0 is this rank, and source i + 1 is child i.
  struct Entry {
    std::vector<bool> have;  // by source: all of its ranks have submitted the name
    std::vector<Submission> submissions;
    Clock::time_point since;
    Clock::time_point warned;
  };
  // The same for a name that all submitted so far by its cache id, which is the usual case in a training step.
  struct Repeat {
    bool open = false;  // at least one source has submitted it
    std::vector<bool> have;
    std::size_t missing = 0;  // number of sources that have not submitted it
    Clock::time_point since;
    Clock::time_point warned;
  };

  // A request that an id had before its present one.
  struct FormerRequest {
    std::uint32_t id = 0;
    std::uint64_t changes = 0;  // changes_ after the id got another request
    std::shared_ptr<const Request> request;
  };

  // Joined ranks contribute zeros, which only a reduction or a barrier can use.
  static bool works_with_joined_ranks(Verb verb) {
    return verb == Verb::allreduce || verb == Verb::adasum || verb == Verb::barrier;
  }

  void visit_open(const Visitor& visitor) override;
  RankSet submitters_of(const std::string& name) const override;
  const RankSet& joined() const override { return joined_; }

  std::size_t sources() const { return tree_.children.size() + 1; }
  std::size_t source_of(int child) const;
  RankSet ranks_of(std::size_t source) const;
  RankSet submitters(std::size_t source, Verb verb) const;
  Submission of_all_sources(const Request& request) const;
  bool all_joined(std::size_t source) const;
  Entry& entry(const std::string& name, Clock::time_point now);
  void add_cached(std::size_t source, std::uint32_t id, Clock::time_point now);
  void add_submissions(std::size_t source, std::vector<Submission> submissions, Clock::time_point now);
  void add_contradiction(std::size_t source, Submission contradiction);
  void record_arrival(std::size_t source, const std::string& name);
  Repeat& repeat(std::uint32_t id, Clock::time_point now);
  void turn_repeat_into_entry(std::uint32_t id);
  bool all_submitted(const std::vector<bool>& have) const;
  Decision shutdown_message_of(int rank) const;
  void complete_if_ready(std::uint32_t id);
  void complete_if_ready(const std::string& name);
  void complete_all_ready();
  void receive_report(std::size_t source, const Report& report, Clock::time_point now);
  void check_rank(int rank) const;
  void check_ranks(const RankSet& ranks) const;
  void check_submission(const Submission& submission) const;
  void check_ranks(const Report& report) const;
  void apply(Plan plan);
  void mark_joined(int rank);
  Decision decide(const std::vector<Submission>& submissions);
  Decision decide_cached(std::uint32_t id);
  void give_id(std::uint32_t id, std::shared_ptr<const Request> request);
  std::shared_ptr<const Request> former_request(std::uint32_t id, const Report& report) const;
  void decide_joined(std::vector<Decision>& plan);
  void record_failure(const std::string& name);
  void remove_submissions(const std::string& name);
  bool is_outdated(const std::string& name, const Report& report) const;
  void record_changes_seen(std::size_t source, std::uint64_t changes);

  Tree tree_;
  StallTimes stall_times_;
  ResponseCache cache_;
  std::unordered_map<std::string, Entry> entries_;
  std::vector<Repeat> repeats_;  // by id
  std::size_t open_repeats_ = 0;
  Report report_;                            // complete below this node and not reported (root: not decided) yet
  std::vector<Outgoing> relayed_;            // plans to forward to the children
  std::vector<Decision> extra_;              // root: further decisions for the next plan, such as warnings
  std::deque<std::vector<Decision>> plans_;  // for this rank
  RankSet joined_;
  std::vector<int> join_order_;  // root: in the order of arrival
  StalledRequests stalled_;
  std::uint64_t changes_ = 0;  // number of decisions that change the meaning of a name or an id, the same on all ranks
  std::map<std::string, std::uint64_t> failed_names_;  // names → changes_ then, until all children have applied it
  std::vector<FormerRequest> former_requests_;         // in the order of the changes, until all children know of them
  std::vector<std::uint64_t> changes_seen_;            // by child
  std::vector<Arrival> arrivals_;
  bool recording_arrivals_ = false;
  bool urgent_ = false;
  bool closed_ = false;
};

}  // namespace perseus
