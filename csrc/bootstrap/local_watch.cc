#include "bootstrap/local_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace perseus {

namespace {

enum class Word : std::int32_t { goodbye = 1, lost = 2 };

struct Note {
  Word word = Word::goodbye;
  std::int32_t rank = 0;
};

// A note fits into any socket buffer that is not full, and a full one belongs to a peer that has other troubles.
void send_note(int socket, Note note) {
  [[maybe_unused]] const auto sent = send(socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

constexpr auto kEnded = "ended without shutting down (it was killed, crashed, or left because of an error)";

}  // namespace

LocalWatch::LocalWatch(std::vector<Peer> peers, bool is_centre, Liveness& liveness)
    : peers_(std::move(peers)), is_centre_(is_centre), liveness_(liveness), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw Error(ErrorKind::transport, std::string("cannot make an eventfd: ") + std::strerror(errno));
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "perseus-watch");
}

LocalWatch::~LocalWatch() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void LocalWatch::say_goodbye() {
  for (const auto& peer : peers_) send_note(peer.socket.get(), {Word::goodbye, 0});
}

void LocalWatch::close_after_fork() {
  for (auto& peer : peers_) peer.socket.reset();
  stop_.reset();
  if (thread_.joinable()) thread_.detach();
}

void LocalWatch::run() {
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<std::size_t> index;
    entries.push_back({stop_.get(), POLLIN, 0});
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i].gone) continue;
      entries.push_back({peers_[i].socket.get(), POLLIN, 0});
      index.push_back(i);
    }
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[0].revents != 0) return;
    for (std::size_t e = 1; e < entries.size(); ++e) {
      if (entries[e].revents != 0) hear(peers_[index[e - 1]]);
    }
  }
}

void LocalWatch::hear(Peer& peer) {
  Note note;
  const auto got = recv(peer.socket.get(), &note, sizeof note, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got != sizeof note) {
    peer.gone = true;
    if (!peer.left) lose(peer.rank);
    return;
  }
  switch (note.word) {
    case Word::goodbye: peer.left = true; break;
    case Word::lost: liveness_.report_lost(note.rank, kEnded); break;
  }
}

void LocalWatch::lose(int rank) {
  // The others first: once this rank knows, it may end, and they would hear of its end alone.
  for (const auto& peer : peers_) {
    if (is_centre_ && !peer.gone) send_note(peer.socket.get(), {Word::lost, rank});
  }
  liveness_.report_lost(rank, kEnded);
}

}  // namespace perseus
