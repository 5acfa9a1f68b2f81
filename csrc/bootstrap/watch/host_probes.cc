#include "bootstrap/watch/host_probes.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/wait/thread.h"
#include "bootstrap/host_rendezvous.h"

namespace perseus {
namespace {

constexpr std::chrono::milliseconds kShortestPause{20};

}  // namespace

// A host is cut off two rounds after the timeout. The heartbeat of the tree, whose timers the kernel rounds up, is
// faster, and so names a host that is down, of which the probes can only say that a network is cut.
HostProbes::Pace HostProbes::Pace::of(std::chrono::seconds timeout, std::size_t targets) {
  const auto round =
      std::max<std::chrono::milliseconds>(heartbeat_interval(timeout), static_cast<int>(targets) * kShortestPause);
  return {round, 2 + static_cast<int>((timeout + round - std::chrono::milliseconds(1)) / round)};
}

HostProbes::HostProbes(int rank, std::vector<Target> targets, UniqueFd reserved, Pace pace,
                       std::vector<std::string> host_names, const Watch& watch, Liveness& liveness)
    : rank_(rank),
      reserved_(std::move(reserved)),
      pace_(pace),
      host_names_(std::move(host_names)),
      watch_(watch),
      liveness_(liveness) {
  for (auto& target : targets) probed_.push_back({std::move(target)});
}

void HostProbes::start(Waiting waiting) {
  if (probed_.empty()) return;
  waiting_ = std::move(waiting);
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw Error(ErrorKind::transport, "cannot make an eventfd: " + system_error_text(errno));
  thread_ = start_thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "perseus-probes");
}

HostProbes::~HostProbes() {
  if (!thread_.joinable()) return;
  stop_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void HostProbes::close_after_fork() {
  reserved_.reset();
  wake_.reset();
  if (thread_.joinable()) thread_.detach();
}

void HostProbes::run() {
  bool is_stalled = false;
  while (!probed_.empty() && !is_over()) {
    const auto before = waiting_();
    if (!probe_all(is_stalled)) return;
    warn_of_unreached();
    const auto after = waiting_();
    is_stalled = std::ranges::any_of(after, [&](const auto& each) { return before.contains(each); });
  }
}

// Takes the time of a round. Returns false if a host is cut off.
bool HostProbes::probe_all(bool is_stalled) {
  const auto until = std::chrono::steady_clock::now() + pace_.round;
  const auto pause = pace_.round / static_cast<int>(probed_.size());
  for (auto& probed : probed_) {
    if (!is_stalled && probed.has_answered) {
      probed.is_awaited = false;
      probed.unanswered = 0;
      continue;
    }
    if (is_over()) return true;
    if (!probe(probed)) return false;
    receive_answers(std::chrono::steady_clock::now() + pause);
  }
  receive_answers(until);
  return true;
}

// Sends the next probe. Returns false if the host is cut off.
bool HostProbes::probe(Probed& probed) {
  if (probed.is_awaited && ++probed.unanswered >= pace_.limit && probed.has_answered) {
    liveness_.report_lost(probed.target.rank, text_of_cut(rank_, host_names_));
    return false;
  }
  auto begun = begin_connecting(probed.target.endpoint);
  probed.socket = std::move(begun.socket);
  probed.is_awaited = true;
  if (!probed.socket) answer(probed, begun.error);
  return true;
}

// Takes the result of a probe. If this process lacks a descriptor, a port or memory, that says nothing about the host.
void HostProbes::answer(Probed& probed, int error) {
  constexpr std::array kOwn = {EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL};
  probed.socket.reset();
  const bool has_answered = error == 0 || error == ECONNREFUSED;
  if (has_answered || std::ranges::find(kOwn, error) != kOwn.end()) probed.is_awaited = false;
  if (!has_answered) return;
  probed.has_answered = true;
  probed.unanswered = 0;
}

void HostProbes::receive_answers(Deadline until) {
  do {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    std::vector<Probed*> polled{nullptr};
    for (auto& probed : probed_) {
      if (!probed.socket) continue;
      entries.push_back({probed.socket.get(), POLLOUT, 0});
      polled.push_back(&probed);
    }
    if (poll(entries.data(), entries.size(), milliseconds_to(until)) <= 0) continue;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) answer(*polled[i], connecting_error(entries[i].fd));
    }
  } while (!is_over() && std::chrono::steady_clock::now() < until);
}

// Hosts that have never answered are not probed any more.
void HostProbes::warn_of_unreached() {
  std::string names;
  std::erase_if(probed_, [&](const Probed& probed) {
    if (probed.has_answered || probed.unanswered < pace_.limit) return false;
    names += (names.empty() ? "" : ", ") + host_names_[static_cast<std::size_t>(probed.target.rank)];
    return true;
  });
  if (names.empty()) return;
  log(LogLevel::warning, "host " + host_names_[static_cast<std::size_t>(rank_)] + " does not reach " + names +
                             " by TCP. Continuing without a heartbeat between these hosts: that the network between "
                             "them is cut may be noticed minutes later, or never. Set "
                             "PERSEUS_NETWORK_INTERFACES to the interface that connects the hosts");
}

std::string HostProbes::text_of_cut(int rank, const std::vector<std::string>& host_names) {
  return "does not answer rank " + std::to_string(rank) + " on " + host_names[static_cast<std::size_t>(rank)] +
         " any more: the network between these two hosts is cut (no answer within PERSEUS_HEARTBEAT_TIMEOUT)";
}

}  // namespace perseus
