// Finds the ranks that keep a request or a running collective from completing.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/rank_set.h"

namespace perseus {

class Writer;

// Describes what a query asks about: whether a request was submitted, or how far an engine has come. A step of an
// engine has the same number on all ranks.
struct ProgressPoint {
  std::uint64_t engine = 0;  // identifies the engine; the same on all of its ranks
  std::int64_t number = -1;  // counts what the engine executes; -1: before the first
  std::string name = {};     // a request; empty if the point is a step

  auto operator<=>(const ProgressPoint&) const = default;
};

// Says whether a rank has reached a progress point.
enum class Progress : std::uint8_t { reached, behind };

// Runs missing-rank queries over a tree of connections. A question goes from one rank to all ranks. The answers come
// back on the same way: each rank unites its own with those of the ranks behind it, so that a connection carries one
// answer. A stopped rank cuts off the ranks behind it, so a verdict then names only the stopped rank: nothing is known
// about the others. The rank that asked sends its verdict to all ranks. Ranks that wait for the same point ask at about
// the same time; of their queries only that of the lowest rank goes on, so that their number does not multiply the
// messages. An engine runs queries over its negotiation tree, and the stall watch over the watch connections, which a
// process serves even while a collective blocks its other threads. No message may be lost, except those to a rank that
// does not receive. Pure logic; one thread at a time.
class MissingRankQuery {
 public:
  using Clock = std::chrono::steady_clock;
  using HowFar = std::function<Progress(const ProgressPoint&)>;
  // Returns the time that a message to a neighbour and the answer may take on the network.
  using RoundTrip = std::function<std::chrono::milliseconds(int neighbour)>;

  struct Outgoing {
    int to = 0;
    std::string bytes;
  };
  struct Verdict {
    ProgressPoint point;
    int asker = 0;
    RankSet silent = {};   // ranks that do not answer
    RankSet behind = {};   // ranks that answer that they have not reached the point
    int more = 0;          // number of such ranks beyond those listed
    bool partial = false;  // nothing is known about some ranks, because a rank on the way to them is unreachable
    bool last = false;     // the rank that asked fails the collective now
  };

  // `parents[r]` is rank r's neighbour on the way to rank 0, and −1 for rank 0. `how_far(point)` returns whether this
  // rank has reached a point. A query waits for answers for the time `timeout`, and for the slowest round trips on the
  // way if `round_trip` is given. A verdict lists at most `most_listed` ranks.
  MissingRankQuery(int rank, std::vector<int> parents, HowFar how_far, std::chrono::milliseconds timeout,
                   std::size_t most_listed = SIZE_MAX, RoundTrip round_trip = {});

  // Sets the neighbours to which a connection exists; at first, these are all, and later never more. Ranks without a
  // connection are unreachable and never blamed.
  void set_neighbours(const std::vector<int>& ranks);

  // Returns true if the bytes are a message of a query. No other control message has the same first byte.
  static bool is_of(std::string_view bytes) { return !bytes.empty() && bytes[0] == kMark; }

  // Starts a query. Does nothing while a query for the same point is in progress, of this rank or of another rank: its
  // verdict serves both. `members` are the ranks that must reach the point; all ranks that ask about a point give the
  // same. `last`: see Verdict.
  void ask(const ProgressPoint& point, const RankSet& members, Clock::time_point now, bool last = false);

  // Handles a message of a neighbour. Throws Error(transport) if it is malformed.
  void receive(int from, std::string_view bytes, Clock::time_point now);

  // Returns true while this rank waits for answers. look() ends the queries that have timed out. The time between two
  // calls counts for an eighth of the timeout at most: a rank that does not run, or is in a collective, does not
  // receive answers.
  bool open() const {
    return std::ranges::any_of(queries_, [this](const auto& each) { return each.second.asker == rank_; });
  }
  void look(Clock::time_point now);

  std::vector<Outgoing> take_messages() { return std::exchange(outgoing_, {}); }
  // Verdicts of this rank's queries and of other ranks' queries.
  bool has_verdicts() const { return !verdicts_.empty(); }
  std::vector<Verdict> take_verdicts() { return std::exchange(verdicts_, {}); }

 private:
  static constexpr char kMark = 0x7e;
  enum class Kind : std::uint8_t { question, answer, superseded, verdict };

  // A query of this or of another rank.
  struct Query {
    int asker;
    Clock::time_point until = Clock::time_point::max();  // of another rank: it counts as lost from then on
    int towards = -1;        // the neighbour from which the question came; −1: this rank asks, or it has not come yet
    RankSet awaited = {};    // neighbours that have not answered for all ranks behind them
    bool is_urgent = false;  // the rank that asks does not wait until all have answered
    // Three sets: ranks that have reached the point, ranks that are behind, ranks to which a neighbour has no
    // connection. `sent` is the part of `known` that was sent on.
    std::array<RankSet, 3> known = {}, sent = {};
    std::chrono::milliseconds own_round_trip{0};                // the slowest to a neighbour behind this rank
    std::map<int, std::chrono::milliseconds> round_trips = {};  // by neighbour: what it has sent of the ways behind it
    std::chrono::milliseconds sent_round_trip{0};
    bool is_complete = false;  // the answers of all ranks behind this one were sent

    // Used for this rank's own query only.
    RankSet members = {};
    Clock::duration left{};   // until the timeout; negative if round trips take longer
    Clock::duration asked{};  // `left` at the last question
    bool last = false;

    RankSet answered() const;
    std::chrono::milliseconds round_trip() const;
  };

  static Writer begin_message(Kind kind, const ProgressPoint& point, int asker);
  void receive_question(int from, const ProgressPoint& point, int asker, std::string_view bytes, Clock::time_point now);
  void forward(const std::string& bytes, int from);
  void send_towards(int rank, std::string bytes);
  int next_hop(int from, int to) const;
  bool is_rank(int rank) const { return rank >= 0 && rank < static_cast<int>(parents_.size()); }
  void begin(const ProgressPoint& point, Query query, std::size_t own_state);
  void report(const ProgressPoint& point, Query& query);
  void send_answers(const ProgressPoint& point, Query& query);
  void measure(Query& query) const;
  void finish(const ProgressPoint& point, const Query& query);

  int rank_;
  std::vector<int> parents_;
  HowFar how_far_;
  std::chrono::milliseconds timeout_;
  std::size_t most_listed_;
  RoundTrip round_trip_;
  std::vector<int> neighbours_;  // in the tree
  RankSet unconnected_;          // further neighbours in the tree
  std::map<ProgressPoint, Query> queries_;
  Clock::time_point looked_{};
  std::vector<Outgoing> outgoing_;
  std::vector<Verdict> verdicts_;
};

}  // namespace perseus
