#include "transport/mpi/post.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// The last byte of a message. It also sees to it that none is empty, which would be no message.
constexpr char kContent = 'c', kNothingFollows = 'n';

}  // namespace

void Post::send(int to, std::string bytes) { post(to, std::move(bytes), kContent); }

void Post::post(int to, std::string bytes, char kind) {
  bytes.push_back(kind);
  auto& parcel = leaving_.emplace_back(communicator_);
  parcel.content = {to, std::move(bytes)};
  parcel.messages.send(parcel.content.bytes.data(), parcel.content.bytes.size(), to, Tag::control);
  let_finished_go();
}

bool Post::receive(ControlMessage& message) {
  let_finished_go();
  accept_arrivals();
  while (!arriving_.empty() && arriving_.front().messages.done()) {
    message = std::move(arriving_.front().content);
    arriving_.pop_front();
    const char kind = message.bytes.back();
    message.bytes.pop_back();
    if (kind == kContent) return true;
    ++closed_peers_;
  }
  return false;
}

bool Post::keeps_for(int to) const {
  return std::any_of(leaving_.begin(), leaving_.end(),
                     [to](const Parcel& parcel) { return parcel.content.from == to; });
}

void Post::close() {
  communicator_.outlive_session();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) post(peer, {}, kNothingFollows);
  }
}

bool Post::ended() {
  ControlMessage unheard;
  while (receive(unheard)) {
  }
  return leaving_.empty() && arriving_.empty() && closed_peers_ == size() - 1;
}

void Post::let_finished_go() {
  std::erase_if(leaving_, [](Parcel& parcel) { return parcel.messages.done(); });
}

void Post::accept_arrivals() {
  for (Arrival arrival; communicator_.api().probe(communicator_.comm(), static_cast<int>(Tag::control), arrival);) {
    auto& parcel = arriving_.emplace_back(communicator_);
    parcel.content.from = arrival.from;
    parcel.content.bytes.resize(static_cast<std::size_t>(arrival.bytes));
    parcel.messages.receive(parcel.content.bytes.data(), parcel.content.bytes.size(), arrival.from, Tag::control);
  }
}

void Retired::add(std::unique_ptr<Post> post) {
  {
    const std::scoped_lock lock(mutex_);
    posts_.push_back(std::move(post));
  }
  sweep();
}

void Retired::sweep() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(posts_, [](const std::unique_ptr<Post>& post) {
    try {
      return post->ended();
    } catch (const Error&) {
      return false;  // never to be freed: messages for it may still come
    }
  });
}

}  // namespace perseus::mpi
