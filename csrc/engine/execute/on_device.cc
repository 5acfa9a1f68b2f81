#include "engine/execute/on_device.h"

#include <utility>

#include "base/error.h"

namespace perseus {

namespace {

void require_no_capture(Device& device, Stream stream, const std::string& what,
                        const std::string& which = "the current stream") {
  if (!device.is_capturing(stream)) return;
  throw Error(ErrorKind::invalid_argument,
              what + ": " + which +
                  " is being captured into a CUDA graph, of which communication can be no part; "
                  "capture the model alone, and communicate before or after the graph is replayed");
}

// Both streams are looked at before either is changed.
void require_no_capture(OnDevice& work, Stream stream) {
  require_no_capture(*work.device, stream, "synchronize");
  if (stream == work.stream) return;
  require_no_capture(*work.device, work.stream, "synchronize", "the stream of the request");
}

}  // namespace

std::shared_ptr<OnDevice> on_device(std::shared_ptr<Device> device, Stream stream, const std::string& label) {
  require_no_capture(*device, stream, label);
  auto ready = device->record(stream);
  return std::make_shared<OnDevice>(OnDevice{std::move(device), stream, std::move(ready), nullptr, {}, false});
}

void arrive(OnDevice& work, Stream stream) {
  if (!work.done) return;
  require_no_capture(work, stream);
  arrive_alone(work, stream);
  if (stream != work.stream) work.device->wait(work.stream, *work.done);
  work.arrived = true;
}

void arrive_alone(OnDevice& work, Stream stream) {
  if (!work.done) return;
  require_no_capture(*work.device, stream, "synchronize");
  work.device->wait(stream, *work.done);
  for (const auto& memory : work.results) memory->pass_to(stream);
}

void extend(OnDevice& work, Stream stream) {
  if (!work.done) return;
  require_no_capture(work, stream);
  extend_alone(work, stream);
  if (stream != work.stream) work.device->wait(work.stream, *work.done);
}

void extend_alone(OnDevice& work, Stream stream) {
  if (work.done) work.done = work.device->record(stream);
}

bool is_over(const OnDevice& work) {
  try {
    return !work.done || work.device->is_done(*work.done);
  } catch (const Error&) {
    return true;  // a device that has failed executes nothing any more
  }
}

bool in_use(const OnDevice& work) { return !work.arrived && !is_over(work); }

}  // namespace perseus
