#include "transport/mpi/channel.h"

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
    if (!api_.finalized()) close();
  } catch (const Error&) {
    // Nobody is left to hear it.
  }
}

void MpiChannel::close() {
  const bool lost = liveness_ != nullptr && liveness_->any_lost();
  try {
    post_->close();
  } catch (const Error&) {
    // Who would hear that nothing follows is lost.
  }
  if (!lost) {
    ControlMessage unheard;
    const auto deadline = std::chrono::steady_clock::now() + kLastWords;
    while (post_->keeps_any() && std::chrono::steady_clock::now() < deadline) {
      if (!post_->receive(unheard)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  retired_.add(std::move(post_));
}

void MpiChannel::send(int to, std::string bytes) {
  if (to == rank()) {
    to_self_.push_back({to, std::move(bytes)});
    doorbell_.ring();
    return;
  }
  post_->send(to, std::move(bytes));
}

bool MpiChannel::receive(ControlMessage& message) {
  if (to_self_.empty()) return post_->receive(message);
  message = std::move(to_self_.front());
  to_self_.pop_front();
  return true;
}

}  // namespace perseus::mpi
