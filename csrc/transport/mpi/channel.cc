#include "transport/mpi/channel.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// The last words of a session (a farewell, an error) are worth a short wait.
constexpr std::chrono::milliseconds kLastWords{500};

}  // namespace

MpiChannel::~MpiChannel() {
  try {
    const auto deadline = std::chrono::steady_clock::now() + kLastWords;
    for (let_finished_go(); !leaving_.empty() && std::chrono::steady_clock::now() < deadline; let_finished_go()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const Error&) {
    // Nobody is left to hear it.
  }
}

void MpiChannel::send(int to, std::string bytes) {
  if (to == rank()) {
    to_self_.push_back({to, std::move(bytes)});
    doorbell_.ring();
    return;
  }
  // An empty message would be no message: one byte more tells that there is one.
  bytes.push_back('\0');
  auto& parcel = leaving_.emplace_back(communicator_);
  parcel.content = {to, std::move(bytes)};
  parcel.messages.send(parcel.content.bytes.data(), parcel.content.bytes.size(), to, Tag::control);
  let_finished_go();
}

// MPI goes on with what is under way only inside its calls.
bool MpiChannel::keeps_for(int to) const {
  return std::any_of(leaving_.begin(), leaving_.end(),
                     [to](const Parcel& parcel) { return parcel.content.from == to; });
}

bool MpiChannel::receive(ControlMessage& message) {
  let_finished_go();
  if (!to_self_.empty()) {
    message = std::move(to_self_.front());
    to_self_.pop_front();
    return true;
  }
  accept_arrivals();
  if (arriving_.empty() || !arriving_.front().messages.done()) return false;
  message = std::move(arriving_.front().content);
  message.bytes.pop_back();
  arriving_.pop_front();
  return true;
}

void MpiChannel::let_finished_go() {
  std::erase_if(leaving_, [](Parcel& parcel) { return parcel.messages.done(); });
}

void MpiChannel::accept_arrivals() {
  for (Arrival arrival; communicator_.api().probe(communicator_.comm(), static_cast<int>(Tag::control), arrival);) {
    auto& parcel = arriving_.emplace_back(communicator_);
    parcel.content.from = arrival.from;
    parcel.content.bytes.resize(static_cast<std::size_t>(arrival.bytes));
    parcel.messages.receive(parcel.content.bytes.data(), parcel.content.bytes.size(), arrival.from, Tag::control);
  }
}

}  // namespace perseus::mpi
