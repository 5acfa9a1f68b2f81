// Defines the interface of engines such as MPI below the algorithms between hosts: messages between two ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/wait/doorbell.h"

namespace perseus::messages {

// A message in flight, as the engine names it.
using Request = std::uintptr_t;

// A control message that has arrived. Its bytes are there once the request is done.
struct Arrival {
  int from = 0;
  std::unique_ptr<std::string> bytes;
  Request request = 0;
};

// The connections of one group. Messages between two ranks on one stream and with one tag keep their order. One thread
// at a time. All functions throw Error.
class Network {
 public:
  // At most this number of bytes are one message.
  static constexpr std::size_t kLongestMessage = std::size_t{1} << 30;

  virtual ~Network() = default;

  // Such as "MPI", for texts. The transport's name is this in lower case.
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int streams() const = 0;  // each has connections of its own

  virtual Request send(int stream, const void* data, std::size_t bytes, int to, int tag) = 0;
  virtual Request receive(int stream, void* data, std::size_t bytes, int from, int tag) = 0;
  virtual bool test(Request& request) = 0;
  // Abandons an unfinished request. Returns true if the engine no longer uses its memory. Otherwise it may use the
  // memory until it ends.
  virtual bool abandon(Request& request, bool receiving) = 0;

  // Makes progress with all messages, for an engine whose test() does not.
  virtual void progress() {}
  // The doorbell that is notified once a request is done; null if the caller has to poll.
  virtual Doorbell* doorbell() { return nullptr; }
  // Sleeps, making progress, until a notification of the doorbell later than `seen`, but at most for `limit`. It may
  // return earlier. Only for an engine with a doorbell.
  virtual void sleep(std::uint32_t /*seen*/, std::chrono::microseconds /*limit*/) {}
  // A thread that makes progress itself for a while calls begin_polling() before and leave() once it stops.
  virtual void begin_polling() {}
  virtual void leave() {}

  // The program may end the engine before this library does.
  virtual bool has_ended() = 0;
  // Closes the connections, over which no message is in flight. The destructor leaves them open.
  virtual void close() = 0;
};

// A network that also carries control messages, for which the engine looks.
class PolledNetwork : public Network {
 public:
  // Takes the next control message that has arrived from any rank. Returns false if there is none.
  virtual bool take_arrival(Arrival& arrival) = 0;
  virtual Request send_control(const void* data, std::size_t bytes, int to) = 0;
  // The request is done once the message is received.
  virtual Request send_control_until_received(const void* data, std::size_t bytes, int to) = 0;

  // take_arrival() of other groups also looks for the messages of this one. They notify the doorbell; null: none.
  virtual void notify(Doorbell* doorbell) = 0;
};

}  // namespace perseus::messages
