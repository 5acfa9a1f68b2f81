// Warns of collectives that stand still in the middle, and says which ranks keep them from going on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/liveness.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch.h"
#include "control/negotiator.h"
#include "control/progress_probe.h"
#include "control/tree.h"
#include "engine/progress.h"

namespace perseus {

// The negotiation tells of ranks that do not ask for a tensor. Once all have, each is inside an engine and waits for
// the others in a way of the engine's own; a rank that is stopped there, or that leads the negotiation and is stopped,
// can be told only by the silence of all its threads. So a thread looks from time to time how far the engines of this
// process have come, asks the other processes over the watches of the watches where one has not moved for too long, and
// answers them.
class StallWatch {
 public:
  // `watches`: to the ranks of this host, and between hosts; null where there are none. They outlive this.
  StallWatch(const Topology& topology, bool has_local_watch, std::vector<Watch*> watches, Liveness& liveness);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // For a new engine: its ranks open theirs in the same order. Watched while the engine keeps what is returned.
  std::shared_ptr<EngineProgress> open(const Tree& tree, const NegotiatorOptions& options);

  // In a forked child: the thread is not there.
  void abandon_after_fork();

 private:
  using Clock = ProgressProbe::Clock;

  struct Watched {
    std::weak_ptr<EngineProgress> progress;
    std::vector<int> members;  // world ranks
    std::vector<int> leaders;  // those of them that reports of this rank go through
    std::chrono::milliseconds warning, shutdown;
    EngineProgress::Step step;    // when last looked at
    Clock::time_point since{};    // that it has been there
    Clock::time_point warned{};   // of it, or since
    Clock::time_point waiting{};  // since when the negotiation is waited for
    Clock::time_point asked{};    // who keeps either from going on
  };
  // What is to be done once nothing is locked.
  struct News {
    std::vector<std::string> warnings;
    std::vector<Loss> losses;
  };

  void run();
  void hear(int from, std::string_view words);
  News look(Clock::time_point now);
  void look_at(std::uint64_t engine, Watched& watched, Clock::time_point now, bool was_stopped);
  // Whose silence would explain it.
  static std::vector<int> asked_about(const Watched& watched, const EngineProgress::Wait& waiting);
  void judge(const ProgressProbe::Verdict& verdict, Clock::time_point now, News& news);
  void report(const Watched& watched, const ProgressProbe::Verdict& verdict, const std::string& what,
              std::chrono::milliseconds waited, News& news) const;
  void send_messages();
  std::string who(const ProgressProbe::Verdict& verdict) const;
  std::string names_of(const std::vector<int>& ranks) const;
  std::chrono::milliseconds period() const;

  int rank_;
  std::vector<std::string> hosts_;  // by rank; empty where there is one
  std::vector<Watch*> watches_;
  Liveness& liveness_;

  std::mutex mutex_;  // guards the rest, but for the thread
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> engines_;
  std::map<std::uint64_t, std::uint64_t> opened_;  // engines so far, by their members
  ProgressProbe progress_probe_;
  Clock::time_point looked_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace perseus
