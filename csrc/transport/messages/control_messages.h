// Sends and receives the control messages of one communicator, and closes it.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "transport/control_channel.h"
#include "transport/messages/communicator.h"

namespace perseus::messages {

// The control messages of one communicator. A communicator may be freed only once no message can still arrive, so ranks
// close it by a last message to each peer that they have sent messages to, and, once these are received, by a barrier.
// After it, no rank has anything to receive. One thread at a time. Throws Error.
class ControlMessages {
 public:
  ControlMessages(std::unique_ptr<PolledNetwork> network, const WaitOptions& options)
      : network_(*network), communicator_(std::move(network), options), last_(communicator_) {}

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  void send(int to, std::string bytes);
  bool receive(ControlMessage& message);
  // Returns true while a message to `to` is in flight; an engine may make progress only inside its calls.
  bool keeps_for(int to) const;
  bool keeps_any() const { return !outgoing_.empty(); }

  // See PolledNetwork.
  void notify(Doorbell* doorbell) { network_.notify(doorbell); }

  // The program has ended the engine, so that nothing can be sent.
  bool has_no_network() const { return network_.has_ended(); }
  // Sends the last messages. Liveness may be destroyed afterwards.
  void close();
  // Call it after close(), from time to time: other ranks wait for this one's calls. Returns true once all peers have
  // closed and no message is in flight. Messages that still arrive are discarded.
  bool ended();

 private:
  // Members are destroyed in reverse order, so that messages are abandoned before their memory is freed.
  struct InFlightMessage {
    explicit InFlightMessage(Communicator& communicator) : messages(communicator) {}
    int peer = 0;
    std::unique_ptr<std::string> bytes;
    Messages messages;
  };

  void send_with_kind(int to, std::string bytes, char kind);
  void release_finished();
  void receive_arrivals();
  bool all_have_closed();

  PolledNetwork& network_;
  Communicator communicator_;
  std::list<InFlightMessage> outgoing_;  // may finish in any order
  std::list<InFlightMessage> incoming_;  // returned in the order of their arrival
  std::set<int> receivers_;              // of this rank's messages
  Messages last_;

  // Of the barrier, which sends one token per round to the rank at this distance.
  int distance_ = 1;
  bool sent_token_ = false;
  std::set<int> tokens_from_;
};

// Keeps the communicators of destroyed channels until all peers have closed theirs. Thread-safe.
class ClosingChannels {
 public:
  void add(std::unique_ptr<ControlMessages> messages);
  // Frees those that all peers have closed. Returns the number of the others.
  std::size_t sweep();

 private:
  std::mutex mutex_;  // guards the rest
  std::list<std::unique_ptr<ControlMessages>> closing_channels_;
  std::size_t left_ =
      0;  // by the last sweep; add() sweeps at twice as many, so that n channels are looked at O(n) times
};

}  // namespace perseus::messages
