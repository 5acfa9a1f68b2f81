#include "stall/stall_watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/wait/thread.h"
#include "bootstrap/watch/host_watch.h"
#include "stall/stalled_requests.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;

// Limits the ranks in a verdict, so that it fits into a message of a watch connection.
constexpr std::size_t kMostListed = 16;
constexpr milliseconds kShortestPeriod{20}, kLongestPeriod{5000};
constexpr milliseconds kWhileAsking{50};

constexpr auto kHintForSilent = ". Is it stopped (SIGSTOP, a debugger), or its host overloaded?";
constexpr auto kHintForBehind = ". It answers, so it is not stopped: is its host overloaded, or the network slow?";

std::uint64_t number_of(const std::vector<int>& members) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int rank : members) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3;
  return hash;
}

milliseconds since(std::chrono::steady_clock::time_point then, std::chrono::steady_clock::time_point now) {
  return std::chrono::duration_cast<milliseconds>(now - then);
}

}  // namespace

StallWatch::StallWatch(const Topology& topology, bool has_local_watch, Liveness& liveness, milliseconds patience)
    : rank_(topology.rank()),
      topology_(topology),
      liveness_(liveness),
      patience_(patience),
      query_(
          rank_, watch_parents(topology, has_local_watch),
          [this](const ProgressPoint& point) {
            const auto found = engines_.find(point.engine);
            const auto engine = found == engines_.end() ? nullptr : found->second.progress.lock();
            return engine && engine->step().number >= point.number ? Progress::reached : Progress::behind;
          },
          patience, kMostListed,
          [this](int neighbour) {
            milliseconds time{0};
            for (const auto* watch : watches_) time = std::max(time, watch->round_trip(neighbour));
            return time;
          }) {}

void StallWatch::start(std::vector<Watch*> watches) {
  std::erase(watches, nullptr);
  {
    const std::scoped_lock lock(mutex_);
    watches_ = std::move(watches);
    update_neighbours();
  }
  thread_ = start_thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "perseus-stalls");
  for (auto* watch : watches_) watch->listen([this](int from, std::string_view words) { receive(from, words); });
}

StallWatch::~StallWatch() {
  if (!thread_.joinable()) return;
  for (auto* watch : watches_) watch->listen({});
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// A neighbour that has left answers no queries.
void StallWatch::update_neighbours() {
  std::vector<int> neighbours;
  for (const auto* watch : watches_) {
    const auto those = watch->neighbours();
    neighbours.insert(neighbours.end(), those.begin(), those.end());
  }
  query_.set_neighbours(neighbours);
}

void StallWatch::abandon_after_fork() {
  if (thread_.joinable()) thread_.detach();
}

std::shared_ptr<EngineProgress> StallWatch::open(const Tree& tree, const StallTimes& times) {
  auto progress = std::make_shared<EngineProgress>();
  Watched watched;
  watched.progress = progress;
  for (const int rank : tree.world_ranks) {
    watched.members.add(rank);
    watched.several_hosts |= topology_.host_of(rank) != topology_.host_of(tree.world_ranks.front());
  }
  watched.warning = times.warning;
  watched.shutdown = times.shutdown;
  if (!tree.is_root()) {
    watched.leaders.add(tree.world_ranks.front());
    watched.leaders.add(tree.world_ranks[static_cast<std::size_t>(tree.parent)]);
  }
  {
    const std::scoped_lock lock(mutex_);
    const auto members = number_of(tree.world_ranks);
    engines_[members + opened_[members]++] = std::move(watched);
  }
  changed_.notify_all();
  return progress;
}

std::set<std::pair<std::uint64_t, std::int64_t>> StallWatch::waiting() {
  std::set<std::pair<std::uint64_t, std::int64_t>> found;
  const std::scoped_lock lock(mutex_);
  for (const auto& [number, engine] : engines_) {
    const auto progress = engine.progress.lock();
    if (!progress) continue;
    const auto step = progress->step();
    const auto waiting = step.active ? EngineProgress::Wait{} : progress->waiting();
    if (step.active) found.emplace(number, step.number);
    if (!waiting.label.empty()) found.emplace(number, waiting.since.time_since_epoch().count());
  }
  return found;
}

milliseconds StallWatch::period() const {
  auto shortest = milliseconds::max();
  for (const auto& [number, engine] : engines_) {
    for (const auto limit : {engine.warning, engine.shutdown}) {
      if (limit.count() > 0) shortest = std::min(shortest, limit);
    }
  }
  if (shortest == milliseconds::max()) return shortest;
  return query_.open() ? kWhileAsking : std::clamp(shortest / 8, kShortestPeriod, kLongestPeriod);
}

void StallWatch::run() {
  std::unique_lock lock(mutex_);
  looked_ = Clock::now();
  while (!stop_) {
    const auto limit = period();
    if (limit == milliseconds::max()) {
      changed_.wait(lock);
      looked_ = Clock::now();
      query_.take_verdicts();  // of others
      continue;
    }
    changed_.wait_for(lock, limit, [this] { return stop_ || query_.has_verdicts(); });
    auto news = look(Clock::now());
    send_messages();
    lock.unlock();
    for (const auto& warning : news.warnings) log(LogLevel::warning, warning);
    for (const auto& loss : news.losses) liveness_.report_lost(loss);
    lock.lock();
  }
}

void StallWatch::receive(int from, std::string_view words) {
  const std::scoped_lock lock(mutex_);
  update_neighbours();
  try {
    query_.receive(from, words, Clock::now());
  } catch (const Error& error) {
    log(LogLevel::debug, "rank " + std::to_string(from) + ": " + error.what());
  }
  send_messages();
  if (query_.has_verdicts()) changed_.notify_all();
}

// Each neighbour is reachable over one of the watches.
void StallWatch::send_messages() {
  for (const auto& message : query_.take_messages()) {
    for (auto* watch : watches_) watch->send_to(message.to, message.bytes);
  }
}

StallWatch::News StallWatch::look(Clock::time_point now) {
  // A process that was stopped itself has observed nothing in that time.
  const bool was_stopped = since(looked_, now) > 4 * period() + patience_;
  looked_ = now;
  std::erase_if(engines_, [](const auto& each) { return each.second.progress.expired(); });
  News news;
  if (liveness_.any_lost()) return news;
  update_neighbours();
  for (auto& [number, engine] : engines_) look_at(number, engine, now, was_stopped);
  query_.look(now);
  for (const auto& verdict : query_.take_verdicts()) judge(verdict, now, news);
  return news;
}

void StallWatch::look_at(std::uint64_t engine, Watched& watched, Clock::time_point now, bool was_stopped) {
  const auto progress = watched.progress.lock();
  if (!progress) return;
  const auto step = progress->step();
  const auto waiting = step.active ? EngineProgress::Wait{} : progress->waiting();
  if (was_stopped || watched.step != step || watched.waiting != waiting.since) {
    watched.step = step;
    watched.waiting = waiting.since;
    watched.since = step.active ? now : waiting.since;
    watched.asked = step.active || was_stopped ? now : waiting.since;
  }
  const auto asked = asked_about(watched, waiting);
  if (asked.empty()) return;
  // The coordinator and host leaders warn of a missing decision themselves if they can.
  const auto warning = step.active ? watched.warning : watched.warning + watched.warning / 4;
  const auto shutdown = step.active ? watched.shutdown : watched.shutdown + patience_;
  const auto since_asked = since(watched.asked, now);
  const bool over = watched.shutdown.count() > 0 && since(watched.since, now) >= shutdown && since_asked >= patience_;
  const bool late = watched.warning.count() > 0 && since_asked >= warning;
  if (over || late) query_.ask({engine, step.active ? step.number : -1}, asked, now, over);
}

RankSet StallWatch::asked_about(const Watched& watched, const EngineProgress::Wait& waiting) {
  if (watched.step.active) return watched.members;
  if (waiting.label.empty()) return {};
  return waiting.from < 0 ? watched.leaders : RankSet{waiting.from};
}

void StallWatch::judge(const MissingRankQuery::Verdict& verdict, Clock::time_point now, News& news) {
  const auto found = engines_.find(verdict.point.engine);
  if (found == engines_.end() || verdict.silent.contains(rank_) || verdict.behind.contains(rank_)) return;
  auto& watched = found->second;
  const auto progress = watched.progress.lock();
  if (!progress) return;
  // Another rank may have observed the same a little earlier, and this rank may wait for something else by now.
  const auto step = progress->step();
  const auto waiting = step.active ? EngineProgress::Wait{} : progress->waiting();
  if (step != watched.step || waiting.since != watched.waiting) return;
  if (verdict.point.number != (step.active ? step.number : -1)) return;
  if (step.active && since(watched.asked, now) < watched.warning / 2 && !verdict.last) return;
  const auto label = step.active ? progress->label() : waiting.label;
  if (label.empty()) return;
  watched.asked = now;
  const auto waited = since(watched.since, now);
  if (!step.active) {
    const auto asked = asked_about(watched, waiting).ranks();
    const bool silent = std::ranges::any_of(asked, [&](int rank) { return verdict.silent.contains(rank); });
    const auto what = label + (waiting.from < 0 ? " waits to be agreed on, for " : " does not come, for ");
    if (silent) report(watched, verdict, what, waited, news);
    return;
  }
  const bool none = verdict.silent.empty() && verdict.behind.empty();
  if (!none) return report(watched, verdict, label + " stands still, for ", waited, news);
  const auto text = label + " has been under way for " + in_seconds(waited) +
                    (verdict.partial ? " s, and all ranks that can be asked take part in it; others cannot, because a "
                                       "rank between them and this one has left, or was never reached"
                                     : " s, and all ranks take part in it: the network or a host is slow");
  // Within a host, nothing can come between ranks that all take part.
  if (verdict.last && watched.shutdown.count() > 0 && watched.several_hosts) {
    const auto too_long = "waited for too long (PERSEUS_STALL_SHUTDOWN_TIME_SECONDS): " + text +
                          ", or two hosts are cut off from each other";
    news.losses.push_back({.rank = verdict.asker, .text = too_long, .stalled = true});
  } else if (verdict.asker == rank_ && watched.warning.count() > 0) {
    news.warnings.push_back(text);
  }
}

void StallWatch::report(const Watched& watched, const MissingRankQuery::Verdict& verdict, const std::string& what,
                        milliseconds waited, News& news) const {
  const auto text = what + in_seconds(waited) + " s: " + who(verdict);
  if (watched.shutdown.count() > 0 && verdict.last) {
    const auto& blamed = verdict.silent.empty() ? verdict.behind : verdict.silent;
    const auto too_long = "was waited for too long (PERSEUS_STALL_SHUTDOWN_TIME_SECONDS): " + text;
    news.losses.push_back({.rank = blamed.lowest(), .text = too_long, .stalled = true});
  } else if (watched.warning.count() > 0) {
    news.warnings.push_back(text + (verdict.silent.empty() ? kHintForBehind : kHintForSilent));
  }
}

std::string StallWatch::who(const MissingRankQuery::Verdict& verdict) const {
  std::string text;
  if (!verdict.silent.empty()) {
    text = names_of(verdict.silent) + (verdict.silent.size() > 1 ? " do not answer" : " does not answer");
  }
  if (!verdict.behind.empty()) {
    text += (text.empty() ? "" : ", and ") + names_of(verdict.behind) +
            (verdict.behind.size() > 1 ? " have not come to it" : " has not come to it");
  }
  return verdict.more == 0 ? text : text + ", and " + std::to_string(verdict.more) + " more like these";
}

std::string StallWatch::names_of(const RankSet& ranks) const {
  std::string text;
  for (const int rank : ranks.ranks()) {
    const auto& hosts = topology_.host_names();
    const auto place = static_cast<std::size_t>(rank);
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    if (topology_.host_count() > 1 && place < hosts.size()) text += " on " + hosts[place];
  }
  return text;
}

}  // namespace perseus
