// Point-to-point messages between two ranks of an engine, matched by sender and tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "engine/completion.h"
#include "transport/control_channel.h"

namespace perseus {

// One side of a message. For a receive, `completion.number` becomes the sender's rank in the group.
struct PointToPointOp {
  static constexpr int kAnybody = -1;

  bool outgoing = false;
  int peer = kAnybody;  // rank in the group; a receive may be from anybody
  std::int64_t tag = 0;
  void* data = nullptr;
  DType dtype = DType::uint8;
  std::int64_t count = 0;  // elements
  std::string own_dtype;   // the framework's name of its dtype if that is not `dtype`; both sides must have the same
  Completion completion;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
};

// A send never waits for its receive. A message is sent in parts. The first part comes with the announcement. Small
// parts are sent in the control channel. Larger parts stay in memory that the receiver can map until it has copied
// them, or are sent in the control channel if there is no such memory. Ranks that first send and then receive therefore
// cannot block each other. Messages of one sender with one tag are received in the order in which they were sent, by
// receives in the order in which they were posted.
//
// A message that does not fit its receive fails the receive, and ends the messages between the two ranks: all further
// sends and receives of both fail with the same text. The sender has continued by then, so it logs the error, too. If
// later messages were still delivered, a program that repeats a failed call would receive them in place of others.
//
// post() is thread-safe; everything else is the driver's. Point-to-point messages share the engine's control channel
// and begin with a byte with which no message of the negotiation begins.
class PointToPoint {
 public:
  PointToPoint(ControlChannel& channel, const std::vector<int>& world_ranks)
      : channel_(channel), world_ranks_(world_ranks) {}

  static bool is_point_to_point(const std::string& bytes) { return !bytes.empty() && bytes[0] == kMark; }

  // Throws the reason given to close().
  void post(std::shared_ptr<PointToPointOp> operation);

  // Takes what was posted, and sends to each rank as much as the channel has room for, at most about one large part: a
  // receiver that waits returns the memory of a part before the next but one is laid out. Returns true if anything
  // happened.
  bool make_progress();
  void receive(int from, std::string bytes);

  bool has_outgoing() const { return !outgoing_.empty(); }
  // Returns true if a message, or the rest of one, is expected.
  bool expects() const { return !expected_.empty() || !coming_.empty(); }
  // Returns the receive that has waited longest, of those from a certain rank; null if there is none.
  std::shared_ptr<const PointToPointOp> awaited() const;

  // Tells all other ranks that this rank sends no more. Messages that it has sent can be received afterwards, and the
  // other ranks continue.
  void leave();
  bool is_over() const { return !over_.ok(); }

  // Fails receives that no message has arrived for, and those posted later: no more messages will arrive.
  void fail(const Status& reason);
  // Ends the posting of operations: from now on post() throws `reason`.
  void close(const Status& reason);

 private:
  static constexpr char kMark = 0x7f;

  struct Outgoing {
    std::shared_ptr<PointToPointOp> operation;
    std::uint64_t id = 0;
    std::size_t sent = 0;
    bool announced = false;
  };
  // A part of a message that has arrived. Its data follow the head in `frame`, or lie at a place of the sender.
  struct Part {
    std::string frame;
    std::optional<std::uint64_t> place;
    std::size_t bytes = 0;
  };
  // A message that is arriving or has arrived. Its data are written to their destination as soon as that is known.
  struct Incoming {
    int from = 0;
    std::int64_t tag = 0;
    DType dtype = DType::uint8;
    std::int64_t count = 0;
    std::string own_dtype;
    std::uint64_t id = 0;
    std::vector<Part> kept;                     // parts that arrived before the receive was posted
    std::size_t came = 0;                       // bytes, also those of kept parts
    std::shared_ptr<PointToPointOp> operation;  // the receive, once posted

    std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
  };

  std::size_t send_next(int to, std::deque<Outgoing>& queue);
  void expect(std::shared_ptr<PointToPointOp> operation);
  void match(const std::shared_ptr<Incoming>& message, std::shared_ptr<PointToPointOp> operation);
  static Part part_of(std::string frame);
  void add(Incoming& message, Part part);
  void deliver(const Incoming& message, std::size_t at, const Part& part);
  void return_parts(const Incoming& message);
  void finish_if_complete(const std::shared_ptr<Incoming>& message);
  void hear_announcement(int from, std::string bytes);
  void hear_part(int from, std::string bytes);
  void receive_leaving(int from);
  void hear_refusal(int from, std::string_view bytes);
  void refuse(const Incoming& message, PointToPointOp& operation);
  void end_messages(int peer, const Status& reason);
  void fail_hopeless();
  void return_place(int from, std::uint64_t place);
  const Status* hopeless(const PointToPointOp& operation) const;
  bool has_ended(int peer) const { return ended_.contains(peer); }
  // The answer that a message did not fit may still be sent.
  void look_where_needed() { channel_.expect_anybody(has_sent_ || expects()); }
  std::string rank_text(int rank) const;

  ControlChannel& channel_;
  const std::vector<int>& world_ranks_;
  std::uint64_t next_id_ = 1;
  std::map<int, std::deque<Outgoing>> outgoing_;                 // by receiver: what is not sent yet
  std::map<int, int> laid_out_;                                  // by receiver: parts that it has not copied yet
  std::deque<std::shared_ptr<PointToPointOp>> expected_;         // receives that no message has arrived for
  std::deque<std::shared_ptr<Incoming>> arrived_;                // messages without a receive
  std::map<int, std::deque<std::shared_ptr<Incoming>>> coming_;  // by sender: messages with missing parts
  std::map<int, Status> ended_;                                  // by rank: why there are no more messages with it
  bool has_sent_ = false;
  Status over_;

  std::mutex mutex_;  // guards the rest
  std::vector<std::shared_ptr<PointToPointOp>> posted_;
  Status closed_;
};

}  // namespace perseus
