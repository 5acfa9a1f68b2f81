// Messages between two ranks of an engine, beside its collectives: sends and receives that meet by sender and tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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

// One side of a message. `completion.number` of a receive is the sender, by its rank in the group.
struct PointToPointOp {
  static constexpr int kAnybody = -1;

  bool outgoing = false;
  int peer = kAnybody;  // rank in the group; a receive may be from anybody
  std::int64_t tag = 0;
  void* data = nullptr;
  DType dtype = DType::uint8;
  std::int64_t count = 0;  // elements
  Completion completion;

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
};

// A send never waits for its receive: small data travel with their announcement; larger ones lie in memory that the
// receiver can reach until it has taken them, or leave in parts where there is no such memory. So ranks that first send
// and then receive cannot block each other. Messages of one sender with one tag are received in the order in which they
// were sent, by receives in the order in which they were asked for.
//
// A message that does not fit its receive is an error there. The sender has gone on by then: its log says so at once,
// and its next message from or to that rank fails with the same text.
//
// post() from any thread; everything else is the driver's. PointToPoint share the engine's control channel: their
// messages begin with a byte that no message of the negotiation begins with.
class PointToPoint {
 public:
  PointToPoint(ControlChannel& channel, const std::vector<int>& world_ranks)
      : channel_(channel),
        world_ranks_(world_ranks),
        outgoing_(world_ranks.size()),
        coming_(world_ranks.size()),
        left_(world_ranks.size()),
        refused_(world_ranks.size()) {}

  static bool is_point_to_point(const std::string& bytes) { return !bytes.empty() && bytes[0] == kMark; }

  // Throws the reason given to close().
  void post(std::shared_ptr<PointToPointOp> operation);

  // Takes what was posted, and sends what there is room for. True where something happened.
  bool attend();
  void hear(int from, const std::string& bytes);

  bool has_outgoing() const;
  // A message, or the rest of one.
  bool expects() const;
  // The receive that waits for longest, of those from a certain rank; null where none does.
  std::shared_ptr<const PointToPointOp> awaited() const;

  // Tells all others that this rank sends no more. What it has sent can be received afterwards, and the others go on.
  void leave();
  bool is_over() const { return !over_.ok(); }

  // No more will come: receives that nothing has come for fail, and so do those asked for later.
  void fail(const Status& reason);
  // From now on post() throws `reason`.
  void close(const Status& reason);

 private:
  static constexpr char kMark = 0x7f;

  struct Outgoing {
    std::shared_ptr<PointToPointOp> operation;
    std::optional<std::uint64_t> place;  // where the data lie for the receiver
    std::uint64_t id = 0;
    std::size_t sent = 0;
    bool announced = false;
  };
  // A message on its way here, or here. Its data go where they belong as soon as that is known.
  struct Incoming {
    int from = 0;
    std::int64_t tag = 0;
    DType dtype = DType::uint8;
    std::int64_t count = 0;
    std::uint64_t id = 0;
    std::optional<std::uint64_t> place;
    std::string kept;                           // what came before somebody asked for it
    std::size_t came = 0;                       // bytes
    std::shared_ptr<PointToPointOp> operation;  // who asked for it
    Status refusal;                             // where it does not fit

    std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
  };

  bool send_next(int to, Outgoing& message);
  void expect(std::shared_ptr<PointToPointOp> operation);
  void match(const std::shared_ptr<Incoming>& message, std::shared_ptr<PointToPointOp> operation);
  void add(Incoming& message, const char* data, std::size_t bytes);
  void take_from_place(Incoming& message);
  void finish_if_complete(const std::shared_ptr<Incoming>& message);
  void hear_announcement(int from, std::string_view bytes);
  void hear_part(int from, std::string_view bytes);
  void hear_leaving(int from);
  void hear_refusal(int from, std::string_view bytes);
  void refuse(Incoming& message);
  const Status* hopeless(const PointToPointOp& operation) const;
  // Who has sent may hear that it did not fit.
  void look_where_needed() { channel_.expect_anybody(has_sent_ || expects()); }
  std::string rank_text(int rank) const;

  ControlChannel& channel_;
  const std::vector<int>& world_ranks_;
  std::uint64_t next_id_ = 1;
  std::vector<std::deque<Outgoing>> outgoing_;                 // by receiver
  std::deque<std::shared_ptr<PointToPointOp>> expected_;       // receives that nothing has come for
  std::deque<std::shared_ptr<Incoming>> arrived_;              // messages that nobody has asked for
  std::vector<std::deque<std::shared_ptr<Incoming>>> coming_;  // by sender: parts are still on their way
  std::vector<Status> left_;                                   // by rank: why it neither sends nor receives any more
  std::vector<Status> refused_;                                // by rank: what it had no room for
  bool has_sent_ = false;
  Status over_;

  std::mutex mutex_;  // guards the rest
  std::vector<std::shared_ptr<PointToPointOp>> posted_;
  Status closed_;
};

}  // namespace perseus
