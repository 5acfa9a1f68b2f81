#include "engine/point_to_point.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/host/kernels.h"

namespace perseus {

namespace {

constexpr std::size_t kInline = 4096;     // up to this many bytes are sent in the control channel
constexpr std::size_t kPart = 256 << 10;  // longer messages are sent in parts of this size, which fit into caches
constexpr int kMostParts = 80;            // if the receiver has not copied so many, the rest is sent in longer parts
constexpr std::size_t kLongestPart = 1 << 30;
constexpr std::size_t kLarge = 1 << 20;  // messages from this size on are received past the caches
enum class Kind : std::uint8_t { announcement, part, taken, leaving, refusal };

struct Head {
  char mark;
  Kind kind;
  std::uint8_t dtype = 0;
  std::uint32_t laid_out = 0;  // bytes at `place`; 0: the data follow this head
  std::int64_t tag = 0;
  std::int64_t count = 0;
  std::uint64_t id = 0;
  std::uint64_t place = 0;
  std::array<char, 24> own_dtype{};  // shortened to this, and without a zero at the end if it is as long
};

std::string bytes_of(const Head& head, const void* data, std::size_t count) {
  std::string bytes(sizeof head + count, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  if (count > 0) std::memcpy(bytes.data() + sizeof head, data, count);
  return bytes;
}

std::string shape_text(DType dtype, std::int64_t count, const std::string& own_dtype) {
  const auto text = std::to_string(count) + " " + std::string(name_of(dtype));
  return own_dtype.empty() ? text : text + " as " + own_dtype;
}

}  // namespace

void PointToPoint::post(std::shared_ptr<PointToPointOp> operation) {
  std::scoped_lock lock(mutex_);
  if (!closed_.ok()) throw Error(closed_.kind(), closed_.text());
  posted_.push_back(std::move(operation));
}

bool PointToPoint::make_progress() {
  std::vector<std::shared_ptr<PointToPointOp>> posted;
  {
    std::scoped_lock lock(mutex_);
    posted = std::exchange(posted_, {});
  }
  bool busy = !posted.empty();
  for (auto& operation : posted) {
    if (!operation->outgoing) {
      expect(std::move(operation));
    } else if (const auto* reason = hopeless(*operation)) {
      operation->completion.finish(*reason);
    } else {
      const int to = operation->peer;
      outgoing_[to].push_back({.operation = std::move(operation), .id = next_id_++});
      if (!std::exchange(has_sent_, true)) look_where_needed();
    }
  }
  for (auto& [to, queue] : outgoing_) {
    std::size_t sent = 0;
    while (!queue.empty() && sent < kPart && !channel_.keeps_for(to)) {
      sent += send_next(to, queue);
      busy = true;
    }
  }
  std::erase_if(outgoing_, [](const auto& each) { return each.second.empty(); });
  return busy;
}

// Sends the next part of the first message to a rank. Returns the number of its bytes.
std::size_t PointToPoint::send_next(int to, std::deque<Outgoing>& queue) {
  auto& message = queue.front();
  auto& operation = *message.operation;
  const auto* data = static_cast<const char*>(operation.data) + message.sent;
  const auto rest = operation.bytes() - message.sent;
  auto& laid_out = laid_out_[to];
  auto bytes = std::min(rest, laid_out < kMostParts ? kPart : kLongestPart);
  Head head{.mark = kMark, .kind = Kind::part, .id = message.id};
  if (!std::exchange(message.announced, true)) {
    head.kind = Kind::announcement;
    head.dtype = static_cast<std::uint8_t>(operation.dtype);
    head.tag = operation.tag;
    head.count = operation.count;
    operation.own_dtype.copy(head.own_dtype.data(), head.own_dtype.size());
  }
  if (const auto place = bytes > kInline ? channel_.lay_out(to, data, bytes) : std::nullopt) {
    head.laid_out = static_cast<std::uint32_t>(bytes);
    head.place = *place;
    ++laid_out;
  } else {
    bytes = std::min(rest, kPart);
  }
  channel_.send(to, bytes_of(head, data, head.laid_out > 0 ? 0 : bytes));
  message.sent += bytes;
  if (message.sent < operation.bytes()) return bytes;
  operation.completion.finish({});
  queue.pop_front();
  return bytes;
}

void PointToPoint::expect(std::shared_ptr<PointToPointOp> operation) {
  const auto fits = [&](const auto& message) {
    return (operation->peer == PointToPointOp::kAnybody || operation->peer == message->from) &&
           operation->tag == message->tag;
  };
  const auto found = std::find_if(arrived_.begin(), arrived_.end(), fits);
  if (found != arrived_.end()) {
    const auto message = std::move(*found);
    arrived_.erase(found);
    match(message, std::move(operation));
  } else if (const auto* reason = hopeless(*operation)) {
    operation->completion.finish(*reason);
  } else {
    expected_.push_back(std::move(operation));
    look_where_needed();
  }
}

void PointToPoint::match(const std::shared_ptr<Incoming>& message, std::shared_ptr<PointToPointOp> operation) {
  if (operation->count != message->count || operation->dtype != message->dtype ||
      operation->own_dtype.compare(0, sizeof(Head::own_dtype), message->own_dtype) != 0) {
    refuse(*message, *operation);
    return;
  }
  message->operation = std::move(operation);
  message->operation->completion.number = message->from;
  std::size_t at = 0;
  for (const auto& part : std::exchange(message->kept, {})) {
    deliver(*message, at, part);
    at += part.bytes;
  }
  finish_if_complete(message);
}

PointToPoint::Part PointToPoint::part_of(std::string frame) {
  Head head;
  std::memcpy(&head, frame.data(), sizeof head);
  if (head.laid_out > 0) return {{}, head.place, head.laid_out};
  const auto bytes = frame.size() - sizeof head;
  return {std::move(frame), std::nullopt, bytes};
}

void PointToPoint::add(Incoming& message, Part part) {
  if (part.bytes > message.bytes() - message.came) {
    throw Error(ErrorKind::transport, "a message is longer than announced");
  }
  const auto at = message.came;
  message.came += part.bytes;
  if (message.operation) {
    deliver(message, at, part);
  } else if (part.bytes > 0) {
    message.kept.push_back(std::move(part));
  }
}

// Copies a part to its destination, from byte `at` of the message on.
void PointToPoint::deliver(const Incoming& message, std::size_t at, const Part& part) {
  const void* data =
      part.place ? channel_.find(message.from, *part.place, part.bytes) : part.frame.data() + sizeof(Head);
  if (data == nullptr)
    throw Error(ErrorKind::transport, "the data of a message are in memory that this rank cannot map");
  const auto store = message.bytes() >= kLarge ? host::Store::streaming : host::Store::cached;
  host::copy(static_cast<std::byte*>(message.operation->data) + at, data, part.bytes, store);
  if (part.place) return_place(message.from, *part.place);
}

void PointToPoint::return_parts(const Incoming& message) {
  for (const auto& part : message.kept) {
    if (part.place) return_place(message.from, *part.place);
  }
}

// Tells the sender that its memory is free again.
void PointToPoint::return_place(int from, std::uint64_t place) {
  const Head head{.mark = kMark, .kind = Kind::taken, .place = place};
  if (!over_.ok()) return;
  try {
    channel_.send(from, bytes_of(head, nullptr, 0));
  } catch (const Error&) {
    // The sender is lost, so it need not get its memory back.
  }
}

void PointToPoint::finish_if_complete(const std::shared_ptr<Incoming>& message) {
  if (!message->operation || message->came < message->bytes()) return;
  message->operation->completion.finish({});
}

// Ends the messages with the sender, and tells it so.
void PointToPoint::refuse(const Incoming& message, PointToPointOp& operation) {
  const auto peer = message.from;
  const Status reason{
      ErrorKind::disagreement,
      "a message with tag " + std::to_string(message.tag) + ": " + rank_text(peer) + " sent " +
          shape_text(message.dtype, message.count, message.own_dtype) + ", " + rank_text(channel_.rank()) +
          " has room for " + shape_text(operation.dtype, operation.count, operation.own_dtype) +
          "; both must be the same. All further messages between these ranks fail: make a new group to go on"};
  return_parts(message);
  operation.completion.finish(reason);
  if (over_.ok() && peer != channel_.rank()) {
    const Head head{.mark = kMark, .kind = Kind::refusal};
    try {
      channel_.send(peer, bytes_of(head, reason.text().data(), reason.text().size()));
    } catch (const Error&) {
      // The sender is lost. The receiver gets the error even so.
    }
  }
  end_messages(peer, reason);
}

void PointToPoint::hear_refusal(int from, std::string_view bytes) {
  const Status reason{ErrorKind::disagreement, std::string(bytes.substr(sizeof(Head)))};
  log(LogLevel::error, reason.text());
  end_messages(from, reason);
}

// Fails all sends to `peer` and receives from it, from now on. Messages that have arrived are dropped.
void PointToPoint::end_messages(int peer, const Status& reason) {
  const auto [ended, is_new] = ended_.try_emplace(peer, reason);
  if (!is_new) return;
  if (const auto coming = coming_.extract(peer)) {
    for (auto& message : coming.mapped()) {
      if (message->operation) message->operation->completion.finish(ended->second);
    }
  }
  std::erase_if(arrived_, [&](const auto& message) {
    if (message->from != peer) return false;
    return_parts(*message);
    return true;
  });
  fail_hopeless();
}

void PointToPoint::receive(int from, std::string bytes) {
  if (bytes.size() < sizeof(Head)) throw Error(ErrorKind::transport, "a message between two ranks makes no sense");
  switch (static_cast<Kind>(bytes[1])) {
    case Kind::announcement: return hear_announcement(from, std::move(bytes));
    case Kind::part: return hear_part(from, std::move(bytes));
    case Kind::taken: {
      Head head;
      std::memcpy(&head, bytes.data(), sizeof head);
      channel_.take_back(head.place);
      --laid_out_[from];
      return;
    }
    case Kind::leaving: return receive_leaving(from);
    case Kind::refusal: return hear_refusal(from, bytes);
  }
  throw Error(ErrorKind::transport, "a message between two ranks makes no sense");
}

void PointToPoint::hear_announcement(int from, std::string bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.dtype >= kDTypeCount || head.count < 0) {
    throw Error(ErrorKind::transport, "a message between two ranks makes no sense");
  }
  auto message = std::make_shared<Incoming>();
  message->from = from;
  message->tag = head.tag;
  message->dtype = static_cast<DType>(head.dtype);
  message->count = head.count;
  message->own_dtype.assign(head.own_dtype.begin(), std::find(head.own_dtype.begin(), head.own_dtype.end(), '\0'));
  message->id = head.id;
  auto part = part_of(std::move(bytes));
  if (has_ended(from)) {  // the sender has not heard of it yet
    if (part.place) return_place(from, *part.place);
    return;
  }
  add(*message, std::move(part));
  if (message->came < message->bytes()) coming_[from].push_back(message);

  const auto fits = [&](const auto& operation) {
    return (operation->peer == PointToPointOp::kAnybody || operation->peer == from) && operation->tag == message->tag;
  };
  const auto found = std::find_if(expected_.begin(), expected_.end(), fits);
  if (found == expected_.end()) {
    arrived_.push_back(std::move(message));
    return;
  }
  auto operation = std::move(*found);
  expected_.erase(found);
  look_where_needed();
  match(message, std::move(operation));
}

std::shared_ptr<const PointToPointOp> PointToPoint::awaited() const {
  const auto certain = [](const auto& operation) { return operation && operation->peer != PointToPointOp::kAnybody; };
  for (const auto& [from, messages] : coming_) {
    for (const auto& message : messages) {
      if (certain(message->operation)) return message->operation;
    }
  }
  const auto found = std::find_if(expected_.begin(), expected_.end(), certain);
  return found == expected_.end() ? nullptr : *found;
}

void PointToPoint::hear_part(int from, std::string bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  auto part = part_of(std::move(bytes));
  if (has_ended(from)) {  // the sender has not heard of it yet
    if (part.place) return_place(from, *part.place);
    return;
  }
  const auto coming = coming_.find(from);
  // The parts of one message arrive in order, one message at a time.
  if (coming == coming_.end() || coming->second.front()->id != head.id) {
    throw Error(ErrorKind::transport, "a part came of a message that was not announced");
  }
  const auto message = coming->second.front();
  add(*message, std::move(part));
  if (message->came < message->bytes()) return;
  coming->second.pop_front();
  if (coming->second.empty()) coming_.erase(coming);
  look_where_needed();
  finish_if_complete(message);
}

void PointToPoint::leave() {
  const Head head{.mark = kMark, .kind = Kind::leaving};
  for (int to = 0; to < channel_.size(); ++to) {
    if (to != channel_.rank() && !has_ended(to)) channel_.send(to, bytes_of(head, nullptr, 0));
  }
}

// The messages that the sender sent before it left have been received already.
void PointToPoint::receive_leaving(int from) {
  ended_.try_emplace(from, ErrorKind::peer_lost, rank_text(from) + " has left the group");
  fail_hopeless();
}

// Fails what cannot complete, because there are no more messages with a rank.
void PointToPoint::fail_hopeless() {
  for (const auto& [peer, reason] : ended_) {
    if (const auto queue = outgoing_.extract(peer)) {
      for (auto& message : queue.mapped()) message.operation->completion.finish(reason);
    }
  }
  std::deque<std::shared_ptr<PointToPointOp>> rest;
  for (auto& operation : std::exchange(expected_, {})) {
    if (const auto* reason = hopeless(*operation)) {
      operation->completion.finish(*reason);
    } else {
      rest.push_back(std::move(operation));
    }
  }
  expected_ = std::move(rest);
  look_where_needed();
}

// Returns the reason why the operation cannot complete any more, or null.
const Status* PointToPoint::hopeless(const PointToPointOp& operation) const {
  if (!over_.ok()) return &over_;
  if (operation.peer != PointToPointOp::kAnybody) {
    const auto found = ended_.find(operation.peer);
    return found == ended_.end() ? nullptr : &found->second;
  }
  const auto ended = ended_.size() - (has_ended(channel_.rank()) ? 1 : 0);
  const bool others_are_left = ended + 1 < world_ranks_.size();
  return others_are_left || ended_.empty() ? nullptr : &ended_.rbegin()->second;
}

void PointToPoint::fail(const Status& reason) {
  if (over_.ok()) over_ = reason;
  try {
    static_cast<void>(make_progress());
  } catch (const std::exception&) {
    // The completion has failed already for another reason.
  }
  for (auto& operation : std::exchange(expected_, {})) operation->completion.finish(over_);
  for (auto& [to, queue] : std::exchange(outgoing_, {})) {
    for (auto& message : queue) message.operation->completion.finish(over_);
  }
  for (auto& [from, queue] : std::exchange(coming_, {})) {
    for (auto& message : queue) {
      if (message->operation) {
        message->operation->completion.finish(over_);
      } else {
        std::erase(arrived_, message);
      }
    }
  }
}

void PointToPoint::close(const Status& reason) {
  {
    std::scoped_lock lock(mutex_);
    if (closed_.ok()) closed_ = reason;
  }
  fail(reason);
}

std::string PointToPoint::rank_text(int rank) const {
  return "rank " + std::to_string(world_ranks_[static_cast<std::size_t>(rank)]);
}

}  // namespace perseus
