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
#include "control/inquiry.h"
#include "control/negotiator.h"
#include "control/tree.h"
#include "engine/underway.h"

namespace perseus {

// The negotiation tells of ranks that do not ask for a tensor. Once all have, each is inside an engine and waits for
// the others in a way of the engine's own; a rank that is stopped there, or that leads the negotiation and is stopped,
// can be told only by the silence of all its threads. So a thread looks from time to time how far the lanes of this
// process have come, asks the other processes over the wires of the watches where one has not moved for too long, and
// answers them.
class StallWatch {
 public:
  // `wires`: to the ranks of this host, and between hosts; null where there are none. They outlive this.
  StallWatch(const Topology& topology, bool has_local_watch, std::vector<Watch*> wires, Liveness& liveness);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // For a new lane: its ranks open theirs in the same order. Watched while the lane keeps what is returned.
  std::shared_ptr<Underway> open(const Tree& tree, const NegotiatorOptions& options);

  // In a forked child: the thread is not there.
  void abandon_after_fork();

 private:
  using Clock = Inquiry::Clock;

  struct Watched {
    std::weak_ptr<Underway> underway;
    std::vector<int> members;  // world ranks
    std::vector<int> leaders;  // those of them that reports of this rank go through
    std::chrono::milliseconds warning, shutdown;
    Underway::Step step;          // when last looked at
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
  void look_at(std::uint64_t lane, Watched& watched, Clock::time_point now, bool was_stopped);
  // Whose silence would explain it.
  static std::vector<int> asked_about(const Watched& watched, const Underway::Wait& waiting);
  void judge(const Inquiry::Verdict& verdict, Clock::time_point now, News& news);
  void report(const Watched& watched, const Inquiry::Verdict& verdict, const std::string& what,
              std::chrono::milliseconds waited, News& news) const;
  void send_messages();
  std::string who(const Inquiry::Verdict& verdict) const;
  std::string names_of(const std::vector<int>& ranks) const;
  std::chrono::milliseconds period() const;

  int rank_;
  std::vector<std::string> hosts_;  // by rank; empty where there is one
  std::vector<Watch*> wires_;
  Liveness& liveness_;

  std::mutex mutex_;  // guards the rest, but for the thread
  std::condition_variable changed_;
  std::map<std::uint64_t, Watched> lanes_;
  std::map<std::uint64_t, std::uint64_t> opened_;  // lanes so far, by their members
  Inquiry inquiry_;
  Clock::time_point looked_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace perseus
