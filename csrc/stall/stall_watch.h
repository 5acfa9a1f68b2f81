// Warns of collectives that make no progress after they have begun, and names the ranks that block them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/topology.h"
#include "bootstrap/watch/liveness.h"
#include "bootstrap/watch/watch.h"
#include "control/tree.h"
#include "stall/engine_progress.h"
#include "stall/missing_rank_query.h"
#include "stall/stalled_requests.h"

namespace perseus {

// The negotiation reports ranks that have not submitted a tensor. Once all ranks have submitted it, each is inside an
// engine and waits for the others. A rank that is stopped there, or a stopped coordinator, is noticed only because all
// its threads are silent. This class has a thread that regularly reads how far the engines of this process have come.
// If an engine makes no progress for too long, the thread sends missing-rank queries to the other processes over the
// watches; it also answers their probes.
class StallWatch {
 public:
  // `patience` is the time that a rank has to answer. A running process answers at once, but on few cores its thread
  // may have to wait for a core.
  StallWatch(const Topology& topology, bool has_local_watch, Liveness& liveness,
             std::chrono::milliseconds patience = std::chrono::seconds(2));
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // Starts the thread. `watches` connect to the ranks of this host and of other hosts; null if there are none. They
  // outlive this.
  void start(std::vector<Watch*> watches);

  // Registers a new engine. All its ranks must register their engines in the same order. The watch lasts as long as the
  // engine keeps the returned object.
  std::shared_ptr<EngineProgress> open(const Tree& tree, const StallTimes& times);

  // Returns the engines whose work waits, each with a number that differs from one collective or receive to the next.
  // Thread-safe.
  std::set<std::pair<std::uint64_t, std::int64_t>> waiting();

  // Called in a forked child, in which the thread does not exist.
  void abandon_after_fork();

 private:
  using Clock = MissingRankQuery::Clock;

  struct Watched {
    std::weak_ptr<EngineProgress> progress;
    RankSet members;  // world ranks
    RankSet leaders;  // the members through which this rank's reports go
    bool several_hosts = false;
    std::chrono::milliseconds warning, shutdown;
    EngineProgress::Step step;    // as last read
    Clock::time_point waiting{};  // EngineProgress::Wait::since, as last read
    Clock::time_point since{};    // the time since which the engine waits for the same
    Clock::time_point asked{};    // time of the last verdict; at first, `since`
  };
  // Warnings and losses that are reported after the lock is released.
  struct News {
    std::vector<std::string> warnings;
    std::vector<Loss> losses;
  };

  void run();
  void update_neighbours();
  void receive(int from, std::string_view words);
  News look(Clock::time_point now);
  void look_at(std::uint64_t engine, Watched& watched, Clock::time_point now, bool was_stopped);
  // Returns the ranks whose silence would explain the stall; none if nothing waits.
  static RankSet asked_about(const Watched& watched, const EngineProgress::Wait& waiting);
  void judge(const MissingRankQuery::Verdict& verdict, Clock::time_point now, News& news);
  void report(const Watched& watched, const MissingRankQuery::Verdict& verdict, const std::string& what,
              std::chrono::milliseconds waited, News& news) const;
  void send_messages();
  std::string who(const MissingRankQuery::Verdict& verdict) const;
  std::string names_of(const RankSet& ranks) const;
  std::chrono::milliseconds period() const;

  int rank_;
  Topology topology_;
  std::vector<Watch*> watches_;
  Liveness& liveness_;
  std::chrono::milliseconds patience_;

  std::mutex mutex_;  // guards the rest, except the thread
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> engines_;
  std::map<std::uint64_t, std::uint64_t> opened_;  // engines so far, by their members
  MissingRankQuery query_;
  Clock::time_point looked_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace perseus
