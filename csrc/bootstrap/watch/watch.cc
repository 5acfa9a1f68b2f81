#include "bootstrap/watch/watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/wait/thread.h"

namespace perseus {
namespace {

constexpr auto kUnreachable =
    "does not answer any more: its host is down, or cut off from the network (no answer within "
    "PERSEUS_HEARTBEAT_TIMEOUT)";
constexpr std::chrono::minutes kLongestWait{1};

// Sends a message without blocking. Returns false if the socket has no room.
bool send_note(int socket, const WatchNote& note) {
  return send(socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
         (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS);
}

// Returns true if a further message fits into the socket's buffer, or if the connection has ended. The kernel reports
// room only while a third of the buffer is free, so that a message is never cut in two, and a loss or a shutdown
// message always fits.
bool has_room(int socket) {
  pollfd entry{socket, POLLOUT, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace

Watch::Watch(std::vector<Peer> peers, bool forwards, Liveness& liveness, const char* thread_name, int self)
    : peers_(std::move(peers)),
      liveness_(liveness),
      forwards_(forwards),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(ErrorKind::transport, std::string("cannot make an eventfd: ") + system_error_text(errno));
  reporter_ = liveness_.add_reporter([this, self](const Loss& loss) {
    if (forwards_ || loss.rank == self) send_to_all(WatchNote::of(loss));
  });
  thread_ = start_thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), thread_name);
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  liveness_.remove_reporter(reporter_);
  stop_ = true;
  wake();
  thread_.join();
}

void Watch::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

void Watch::announce_shutdown() {
  any_left_ = true;
  send_to_all(WatchNote::goodbye());
}

void Watch::report_departure() {
  if (!any_left_.exchange(true) && forwards_) send_to_all(WatchNote::departure());
}

std::vector<int> Watch::neighbours() const {
  std::vector<int> ranks;
  const std::scoped_lock lock(waiting_mutex_);
  for (const auto& peer : peers_) {
    if (!peer.left) ranks.push_back(peer.rank);
  }
  return ranks;
}

void Watch::send_to(int rank, std::string_view words) {
  if (words.size() > WatchNote::kText) return;
  const auto now = std::chrono::steady_clock::now();
  const std::scoped_lock lock(waiting_mutex_);
  for (auto& peer : peers_) {
    if (peer.rank != rank) continue;
    std::erase_if(peer.waiting, [&](const Waiting& each) { return now - each.since > kLongestWait; });
    peer.waiting.push_back({now, WatchNote::of(words)});
    send_waiting(peer);
    if (!peer.waiting.empty()) wake();
  }
}

// TCP's retransmission timeout is longer than the round trips so far, and each retransmission doubles it: twice the
// timeout is more than the time since the first transmission. While this side retransmits, so may the other side, which
// then sends its answer with a retransmission of its own: up to twice as late. Only TCP sockets have a timeout.
std::chrono::milliseconds Watch::round_trip(int rank) const {
  std::chrono::microseconds longest{0};
  for (const auto& peer : peers_) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (peer.rank == rank && getsockopt(peer.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      longest = std::max(longest, (info.tcpi_backoff > 0 ? 4 : 2) * std::chrono::microseconds(info.tcpi_rto));
    }
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(longest);
}

void Watch::send_waiting(Peer& peer) {
  while (!peer.waiting.empty() && has_room(peer.socket.get()) &&
         send_note(peer.socket.get(), peer.waiting.front().note)) {
    peer.waiting.pop_front();
  }
}

void Watch::listen(Listener listener) {
  const std::scoped_lock lock(listener_mutex_);
  listener_ = std::move(listener);
}

void Watch::send_to_all(const WatchNote& note) const {
  for (const auto& peer : peers_) send_note(peer.socket.get(), note);
}

void Watch::close_after_fork() {
  for (auto& peer : peers_) peer.socket.reset();
  wake_.reset();
  if (thread_.joinable()) thread_.detach();
}

void Watch::run() {
  while (!stop_) {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    std::vector<Peer*> polled{nullptr};
    {
      const std::scoped_lock lock(waiting_mutex_);
      for (auto& peer : peers_) {
        if (peer.gone) continue;
        const int events = peer.waiting.empty() ? POLLIN : POLLIN | POLLOUT;
        entries.push_back({peer.socket.get(), static_cast<short>(events), 0});  // NOLINT(google-runtime-int)
        polled.push_back(&peer);
      }
    }
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    std::uint64_t wakes = 0;
    [[maybe_unused]] const auto got = read(wake_.get(), &wakes, sizeof wakes);
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if ((entries[i].revents & POLLOUT) != 0) {
        const std::scoped_lock lock(waiting_mutex_);
        send_waiting(*polled[i]);
      }
      if ((entries[i].revents & ~POLLOUT) != 0) receive(*polled[i]);
    }
  }
}

void Watch::receive(Peer& peer) {
  std::array<char, 4 * sizeof(WatchNote)> bytes;
  const auto got = recv(peer.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return lose(peer, got < 0 ? errno : 0);
  peer.received.insert(peer.received.end(), bytes.begin(), bytes.begin() + got);
  while (peer.received.size() >= sizeof(WatchNote)) {
    WatchNote note;
    std::memcpy(&note, peer.received.data(), sizeof note);
    peer.received.erase(peer.received.begin(), peer.received.begin() + sizeof note);
    take(peer, note);
  }
}

void Watch::take(Peer& peer, const WatchNote& note) {
  switch (note.word) {
    case WatchNote::Word::goodbye: {
      {
        const std::scoped_lock lock(waiting_mutex_);
        peer.left = true;
      }
      report_departure();
      break;
    }
    case WatchNote::Word::departure: report_departure(); break;
    case WatchNote::Word::lost:
    case WatchNote::Word::cut_off:
    case WatchNote::Word::stalled:
    case WatchNote::Word::gave_up: liveness_.report_lost(note.loss()); break;
    case WatchNote::Word::words: {
      const std::scoped_lock lock(listener_mutex_);
      if (listener_) listener_(peer.rank, note.words());
      break;
    }
  }
}

void Watch::lose(Peer& peer, int error) {
  peer.gone = true;
  if (peer.left) return;
  const bool ended = error == 0 || error == ECONNRESET || error == EPIPE;
  if (!ended && !peer.cut.empty()) return liveness_.report_lost(peer.rank, peer.cut);
  liveness_.report_lost({peer.rank, ended ? std::string(kEnded) : kUnreachable, !ended});
}

}  // namespace perseus
