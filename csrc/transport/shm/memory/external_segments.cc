#include "transport/shm/memory/external_segments.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace perseus::shm {

Inboxes share_inboxes(LocalRendezvous& rendezvous) {
  DatagramPair pair;
  std::string failure;
  try {
    pair = new_datagram_pair();
  } catch (const Error& error) {
    failure = error.what();
  }
  rendezvous.agree("sockets for shared memory", failure);
  return {std::move(pair.receiver), rendezvous.exchange_fds(pair.sender.get())};
}

ExternalSegments::ExternalSegments(Inboxes inboxes, int local_rank)
    : inboxes_(std::move(inboxes)), local_rank_(local_rank), owner_(getpid()) {}

std::shared_ptr<void> ExternalSegments::add(const void* data, std::size_t bytes) {
  auto file = find_mapped_file(data, bytes);
  auto* const begin = file.begin;
  // A peer that wrote to a page for which there is no room would be ended by SIGBUS.
  if (const int error =
          posix_fallocate(file.fd.get(), static_cast<off_t>(file.offset), static_cast<off_t>(file.bytes))) {
    throw Error(ErrorKind::unavailable, "its pages cannot be allocated: " + system_error_text(error));
  }
  std::scoped_lock lock(mutex_);
  if (own_.contains(begin)) throw Error(ErrorKind::unavailable, "the memory is registered already");
  std::vector<Peer> peers(inboxes_.senders.size(), Peer::unaware);
  peers[static_cast<std::size_t>(local_rank_)] = Peer::confirmed;
  own_[begin] = {++last_number_, std::move(file), std::move(peers)};
  count_ = own_.size();
  return {begin, [weak = weak_from_this()](void* given) {
            const auto self = weak.lock();
            if (!self || getpid() != self->owner_) return;
            std::scoped_lock locked(self->mutex_);
            self->remove(static_cast<std::byte*>(given));
          }};
}

void ExternalSegments::remove(const std::byte* begin) {
  const auto found = own_.find(begin);
  if (found == own_.end()) return;
  const auto& own = found->second;
  for (std::size_t r = 0; r < own.peers.size(); ++r) {
    if (static_cast<int>(r) == local_rank_ || own.peers[r] == Peer::unaware) continue;
    post(static_cast<int>(r), {.kind = Kind::release, .segment = own.number});
  }
  own_.erase(found);
  count_ = own_.size();
}

std::optional<Place> ExternalSegments::find(const void* data, std::size_t bytes, std::span<const int> local_ranks) {
  if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const auto* const begin = static_cast<const std::byte*>(data);
  std::scoped_lock lock(mutex_);
  auto after = own_.upper_bound(begin);
  if (after == own_.begin()) return std::nullopt;
  auto& own = std::prev(after)->second;
  const auto offset = static_cast<std::size_t>(begin - own.file.begin);
  if (offset > own.file.bytes || bytes > own.file.bytes - offset) return std::nullopt;

  const auto has_mapped = [&](int r) { return own.peers[static_cast<std::size_t>(r)] == Peer::confirmed; };
  if (!std::all_of(local_ranks.begin(), local_ranks.end(), has_mapped)) {
    receive_all();
    for (const int r : local_ranks) offer(own, r);
  }
  if (!std::all_of(local_ranks.begin(), local_ranks.end(), has_mapped)) return std::nullopt;
  return Place{own.number, offset};
}

void ExternalSegments::offer(Own& own, int local_rank) {
  auto& peer = own.peers[static_cast<std::size_t>(local_rank)];
  if (peer != Peer::unaware) return;
  send_posted();
  const Message message{.kind = Kind::offer, .segment = own.number, .offset = own.file.offset, .bytes = own.file.bytes};
  const auto result = send(local_rank, message, own.file.fd.get());
  if (result == IoResult::ok) peer = Peer::offered;
  if (result != IoResult::closed) return;  // a full inbox: the next collective offers the segment again
  peer = Peer::refused;
  log(LogLevel::warning, "shared memory of " + std::to_string(own.file.bytes >> 20) +
                             " MiB cannot be sent to local rank " + std::to_string(local_rank) +
                             ", so it is copied, which is slower; see `ulimit -n`");
}

IoResult ExternalSegments::send(int local_rank, Message message, int fd) {
  message.from = local_rank_;
  const auto& socket = inboxes_.senders[static_cast<std::size_t>(local_rank)];
  const auto result = send_datagram(socket.get(), &message, sizeof message, fd);
  // Also if the inbox is full, because the peer then has to empty it.
  changes_.fetch_add(1, std::memory_order_release);
  return result;
}

void ExternalSegments::post(int local_rank, Message message) {
  posted_.emplace_back(local_rank, message);
  send_posted();
}

void ExternalSegments::send_posted() {
  std::erase_if(posted_, [&](const auto& posted) { return send(posted.first, posted.second, -1) != IoResult::late; });
}

void ExternalSegments::receive() {
  std::scoped_lock lock(mutex_);
  receive_all();
}

void ExternalSegments::receive_all() {
  Message message;
  UniqueFd fd;
  while (receive_datagram(inboxes_.mine.get(), &message, sizeof message, fd)) {
    if (message.from < 0 || message.from >= static_cast<std::int64_t>(inboxes_.senders.size())) continue;
    handle(message, std::move(fd));
  }
}

void ExternalSegments::handle(const Message& message, UniqueFd fd) {
  const auto from = static_cast<int>(message.from);
  switch (message.kind) {
    case Kind::offer:
      post(from, {.kind = map(message, fd) ? Kind::confirm : Kind::refuse, .segment = message.segment});
      break;
    case Kind::release: mapped_.erase({from, message.segment}); break;
    case Kind::confirm:
    case Kind::refuse:
      if (auto* own = own_of(message.segment)) {
        own->peers[static_cast<std::size_t>(from)] = message.kind == Kind::confirm ? Peer::confirmed : Peer::refused;
      }
      break;
  }
}

ExternalSegments::Own* ExternalSegments::own_of(std::uint32_t number) {
  const auto found =
      std::find_if(own_.begin(), own_.end(), [&](const auto& entry) { return entry.second.number == number; });
  return found == own_.end() ? nullptr : &found->second;
}

bool ExternalSegments::map(const Message& message, const UniqueFd& fd) {
  struct stat status{};
  const auto bytes = static_cast<std::size_t>(message.bytes);
  if (!fd || fstat(fd.get(), &status) != 0 || message.offset > static_cast<std::uint64_t>(status.st_size) ||
      bytes > static_cast<std::uint64_t>(status.st_size) - message.offset) {
    return false;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), static_cast<off_t>(message.offset));
  if (memory == MAP_FAILED) {
    log(LogLevel::warning, "shared memory of " + std::to_string(bytes >> 20) + " MiB of local rank " +
                               std::to_string(message.from) +
                               " cannot be mapped, so it is copied, which is slower; see `ulimit -v`");
    return false;
  }
  madvise(memory, bytes, MADV_DONTDUMP);
  mapped_[{static_cast<int>(message.from), message.segment}] = {
      {static_cast<std::byte*>(memory), [bytes](std::byte* given) { munmap(given, bytes); }}, bytes};
  return true;
}

std::shared_ptr<std::byte> ExternalSegments::at(int local_rank, Place place, std::uint64_t bytes) {
  std::scoped_lock lock(mutex_);
  if (local_rank == local_rank_) {
    const auto* own = own_of(place.segment);
    if (own == nullptr || place.offset > own->file.bytes || bytes > own->file.bytes - place.offset) return nullptr;
    return {std::shared_ptr<void>(), own->file.begin + place.offset};  // the caller's memory, which it keeps
  }
  const auto found = mapped_.find({local_rank, place.segment});
  if (found == mapped_.end()) return nullptr;
  const auto& mapped = found->second;
  if (place.offset > mapped.bytes || bytes > mapped.bytes - place.offset) return nullptr;
  return {mapped.memory, mapped.memory.get() + place.offset};
}

}  // namespace perseus::shm
