#include "bootstrap/watch.h"

#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace perseus {
namespace {

constexpr auto kUnreachable =
    "does not answer any more: its host is down, or cut off from the network (no answer within "
    "PERSEUS_HEARTBEAT_TIMEOUT)";
// The most unsent bytes in a socket's buffer for a further message. It is far below the size of any socket's buffer, so
// that a message is never cut in two.
constexpr int kMostUnsentBytes = 16 << 10;

// Sends a message without blocking. It is lost if the buffer is full, which happens only if the peer does not read.
void send_note(int socket, const WatchNote& note) {
  [[maybe_unused]] const auto sent = send(socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

Watch::Watch(std::vector<Peer> peers, bool forwards, Liveness& liveness, const char* thread_name, int self)
    : peers_(std::move(peers)), liveness_(liveness), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw Error(ErrorKind::transport, std::string("cannot make an eventfd: ") + system_error_text(errno));
  reporter_ = liveness_.add_reporter([this, forwards, self](const Loss& loss) {
    if (forwards || loss.rank == self) send_to_all(WatchNote::of(loss));
  });
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), thread_name);
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  liveness_.remove_reporter(reporter_);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

std::vector<int> Watch::neighbours() const {
  std::vector<int> ranks;
  ranks.reserve(peers_.size());
  for (const auto& peer : peers_) ranks.push_back(peer.rank);
  return ranks;
}

void Watch::send_to(int rank, std::string_view words) {
  if (words.size() > WatchNote::kText) return;
  for (const auto& peer : peers_) {
    int unsent = 0;
    if (peer.rank != rank || ioctl(peer.socket.get(), SIOCOUTQ, &unsent) != 0 || unsent > kMostUnsentBytes) continue;
    send_note(peer.socket.get(), WatchNote::of(words));
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
  stop_.reset();
  if (thread_.joinable()) thread_.detach();
}

void Watch::run() {
  for (;;) {
    std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}};
    std::vector<Peer*> polled{nullptr};
    for (auto& peer : peers_) {
      if (peer.gone) continue;
      entries.push_back({peer.socket.get(), POLLIN, 0});
      polled.push_back(&peer);
    }
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[0].revents != 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) receive(*polled[i]);
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
    case WatchNote::Word::goodbye: peer.left = true; break;
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
  liveness_.report_lost({peer.rank, ended ? std::string(kEnded) : kUnreachable, !ended});
}

}  // namespace perseus
