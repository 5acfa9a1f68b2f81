#include "bootstrap/local/local_rendezvous.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "bootstrap/authentication.h"

namespace perseus {

namespace {

constexpr std::size_t kSpareDescriptors = 32;  // for files that the program and libraries open meanwhile

// The first message of a rank after the handshake.
struct Hello {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
};

std::string seconds_text(std::chrono::milliseconds limit) {
  auto text = std::to_string(limit.count() / 1000);
  if (const auto tenths = limit.count() / 100 % 10; tenths != 0) text += '.' + std::to_string(tenths);
  return text + " s";
}

// Joins texts to one frame, in which each has its length in front.
std::string joined(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const auto& text : texts) {
    const std::uint64_t length = text.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text;
  }
  return bytes;
}

// Takes apart what joined() has made. Returns false if the bytes are not as many texts as `texts` has.
bool split(std::string_view bytes, std::vector<std::string>& texts) {
  for (auto& text : texts) {
    std::uint64_t length = 0;
    if (bytes.size() < sizeof length) return false;
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (bytes.size() < length) return false;
    text = bytes.substr(0, length);
    bytes.remove_prefix(length);
  }
  return bytes.empty();
}

// Returns the first frame of rank 0 to a rank that it does not accept: the kind of the error as a byte, and its text.
std::string refusal_of(ErrorKind kind, const std::string& text) { return static_cast<char>(kind) + text; }

Error error_in(std::string_view refusal) {
  const auto kind = static_cast<ErrorKind>(refusal.front());
  const bool is_known = kind == ErrorKind::unavailable || kind == ErrorKind::transport;
  return {is_known ? kind : ErrorKind::timed_out, std::string(refusal.substr(1))};
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

std::string socket_name(std::string_view address) {
  constexpr std::size_t kDigits = 32;
  const auto digest = hmac_sha256(address, "name of the rendezvous");
  return "perseus-" + hex_text({reinterpret_cast<const char*>(digest.data()), digest.size()}).substr(0, kDigits);
}

std::string random_rendezvous_address() { return hex_text(random_bytes(24)); }

LocalRendezvous::LocalRendezvous(std::string_view address, int rank, int size, std::chrono::milliseconds limit,
                                 int cancel_fd)
    : rank_(rank), size_(size), limit_(limit), cancel_fd_(cancel_fd) {
  if (size < 1 || rank < 0 || rank >= size || address.empty()) {
    throw Error(ErrorKind::invalid_argument, "rendezvous at '" + std::string(address) +
                                                 "': invalid address, rank or size (rank " + std::to_string(rank) +
                                                 " of " + std::to_string(size) + "); start the job with perseusrun");
  }
  const auto name = socket_name(address);
  if (rank == 0) {
    gather_ranks(name, address, deadline());
  } else {
    join(name, address, deadline());
  }
}

void LocalRendezvous::gather_ranks(const std::string& name, std::string_view secret, Deadline deadline) {
  sockets_.resize(static_cast<std::size_t>(size_));
  if (size_ == 1) return;
  std::vector<UniqueFd> listeners;
  listeners.push_back(listen_on(name));
  AuthenticatedListener listener(std::move(listeners), std::string(secret), sockets_.size(), sizeof(Hello));
  const auto lack = lack_of_descriptors(sockets_.size());
  for (int come = 1; come < size_; ++come) {
    auto admitted = listener.next(deadline, cancel_fd_);
    if (!admitted) {
      check_cancelled();
      if (!lack.empty()) break;
      raise_timeout(come);
    }
    if (lack.empty()) {
      add_rank(std::move(*admitted), deadline);
    } else {
      static_cast<void>(send_frame(admitted->socket.get(), refusal_of(ErrorKind::unavailable, lack), deadline));
    }
  }
  if (!lack.empty()) throw Error(ErrorKind::unavailable, lack);
  for (const auto& socket : sockets_) {
    if (socket) static_cast<void>(send_frame(socket.get(), "", deadline));
  }
}

void LocalRendezvous::raise_timeout(int come) {
  std::vector<int> missing;
  for (int r = 1; r < size_; ++r) {
    if (!sockets_[static_cast<std::size_t>(r)]) missing.push_back(r);
  }
  const auto text = "only " + std::to_string(come) + " of " + std::to_string(size_) +
                    " ranks of this host connected within " + seconds_text(limit_) + "; missing: rank " +
                    list_of(missing) + ". Check whether they failed before init(), or raise PERSEUS_START_TIMEOUT";
  refuse(ErrorKind::timed_out, text);
}

void LocalRendezvous::add_rank(Admitted admitted, Deadline deadline) {
  Hello hello;
  std::memcpy(&hello, admitted.greeting.data(), sizeof hello);
  const bool fits = hello.size == size_ && hello.rank > 0 && hello.rank < size_;
  if (fits && !sockets_[static_cast<std::size_t>(hello.rank)]) {
    sockets_[static_cast<std::size_t>(hello.rank)] = std::move(admitted.socket);
    return;
  }
  const auto text = "rendezvous of this host: process " + std::to_string(hello.pid) + " connected as rank " +
                    std::to_string(hello.rank) + " of " + std::to_string(hello.size) + ", but " +
                    (fits ? "that rank has already connected" : "this host has " + std::to_string(size_) + " ranks") +
                    "; check that no two jobs use the same PERSEUS_RENDEZVOUS";
  static_cast<void>(send_frame(admitted.socket.get(), refusal_of(ErrorKind::transport, text), deadline));
  refuse(ErrorKind::transport, text);
}

void LocalRendezvous::refuse(ErrorKind kind, const std::string& why) {
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  for (const auto& socket : sockets_) {
    if (socket) static_cast<void>(send_frame(socket.get(), refusal_of(kind, why), soon));
  }
  throw Error(kind, why);
}

void LocalRendezvous::join(const std::string& name, std::string_view secret, Deadline deadline) {
  UniqueFd socket;
  // The first rank may not be listening yet, and there is no event to wait for.
  for (auto pause = std::chrono::microseconds(200);; pause = std::min(2 * pause, std::chrono::microseconds(10'000))) {
    socket = connect_to(name);
    if (socket) break;
    check_cancelled();
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(ErrorKind::timed_out, "rank " + std::to_string(rank_) + " found no rank 0 on this host within " +
                                            seconds_text(limit_) +
                                            ". Check whether it failed before init(), or raise PERSEUS_START_TIMEOUT");
    }
    std::this_thread::sleep_for(pause);
  }
  if (!is_same_user(socket.get())) {
    throw Error(ErrorKind::transport, "the rendezvous '@" + name + "' belongs to another user; start the job again");
  }
  const Hello hello{rank_, size_, getpid()};
  auto result = authenticate(socket.get(), secret, deadline);
  if (result == IoResult::ok) result = send_all(socket.get(), &hello, sizeof hello, deadline);
  // The first rank gives up at its own deadline and then sends the list of missing ranks.
  std::string refusal;
  if (result == IoResult::ok) result = receive_frame(socket.get(), refusal, deadline + std::chrono::seconds(5));
  sockets_.push_back(std::move(socket));
  check(result, 0);
  if (!refusal.empty()) throw error_in(refusal);
}

void LocalRendezvous::check(IoResult result, int peer) {
  switch (result) {
    case IoResult::ok: return;
    case IoResult::closed:
      failed_.emplace(ErrorKind::peer_lost, "local rank " + std::to_string(peer) + " ended while the job was starting");
      break;
    case IoResult::late:
      failed_.emplace(ErrorKind::timed_out, "local rank " + std::to_string(peer) + " did not answer within " +
                                                seconds_text(limit_) + " while the job was starting");
      break;
  }
  throw Error(*failed_);
}

void LocalRendezvous::check_cancelled() const {
  if (cancel_fd_ >= 0 && wait_readable(cancel_fd_, std::chrono::steady_clock::now())) {
    throw Error(ErrorKind::peer_lost, "a rank ended while the job was starting");
  }
}

std::vector<std::string> LocalRendezvous::allgather(std::string_view mine) {
  if (failed_) throw Error(*failed_);
  const auto end = deadline();
  std::vector<std::string> all(static_cast<std::size_t>(size_));
  if (rank_ != 0) {
    check(send_frame(sockets_[0].get(), mine, end), 0);
    std::string frame;
    check(receive_frame(sockets_[0].get(), frame, end), 0);
    check(split(frame, all) ? IoResult::ok : IoResult::closed, 0);
    return all;
  }
  all[0] = mine;
  for (int r = 1; r < size_; ++r) {
    check(receive_frame(sockets_[static_cast<std::size_t>(r)].get(), all[static_cast<std::size_t>(r)], end), r);
  }
  const auto frame = joined(all);
  for (int r = 1; r < size_; ++r) check(send_frame(sockets_[static_cast<std::size_t>(r)].get(), frame, end), r);
  return all;
}

void LocalRendezvous::agree(std::string_view what, const std::string& failure) {
  const auto all = allgather(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) {
      throw Error(ErrorKind::unavailable, std::string(what) + " of local rank " + std::to_string(r) + ": " + all[r]);
    }
  }
}

// If this rank lacks descriptors, `lack` says so and `fd` stays empty. The exchange continues, because other ranks may
// use the connections afterwards.
void LocalRendezvous::receive_fd_of(int peer, int socket, UniqueFd& fd, Deadline deadline, std::string& lack) {
  try {
    check(receive_fd(socket, fd, deadline), peer);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unavailable) throw;
    lack = error.what();
  }
}

std::vector<UniqueFd> LocalRendezvous::exchange_fds(int mine) {
  if (failed_) throw Error(*failed_);
  const auto end = deadline();
  std::vector<UniqueFd> all(static_cast<std::size_t>(size_));
  std::string lack;
  char received = 0;
  make_room_for_descriptors(all.size() + kSpareDescriptors);
  if (rank_ != 0) {
    const int first = sockets_[0].get();
    check(send_fd(first, mine, end), 0);
    for (auto& fd : all) receive_fd_of(0, first, fd, end, lack);
    check(send_all(first, &received, sizeof received, end), 0);
    agree("descriptors", lack);
    return all;
  }
  all[0].reset(fcntl(mine, F_DUPFD_CLOEXEC, 0));
  if (!all[0]) lack = std::string("cannot duplicate a descriptor: ") + system_error_text(errno);
  for (int r = 1; r < size_; ++r) {
    receive_fd_of(r, sockets_[static_cast<std::size_t>(r)].get(), all[static_cast<std::size_t>(r)], end, lack);
  }
  // The kernel limits the descriptors of a user that were sent and not received yet, so each rank gets its own once the
  // rank before it has received all.
  for (int r = 1; r < size_; ++r) {
    const int socket = sockets_[static_cast<std::size_t>(r)].get();
    for (const auto& fd : all) check(send_fd(socket, fd ? fd.get() : mine, end), r);
    check(receive_all(socket, &received, sizeof received, end), r);
  }
  agree("descriptors", lack);
  return all;
}

void LocalRendezvous::watch(Liveness& liveness, const std::vector<int>& world_ranks) {
  std::vector<Watch::Peer> peers;
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    if (sockets_[i]) peers.push_back({world_ranks[i], std::move(sockets_[i])});
  }
  sockets_.clear();
  const int self = world_ranks[static_cast<std::size_t>(rank_)];
  watch_ = std::make_unique<Watch>(std::move(peers), /*forwards=*/rank_ == 0, liveness, "perseus-watch", self);
}

void LocalRendezvous::announce_shutdown() {
  if (watch_) watch_->announce_shutdown();
}

void LocalRendezvous::close_after_fork() {
  for (auto& socket : sockets_) socket.reset();
  if (watch_) watch_->close_after_fork();
}

}  // namespace perseus
