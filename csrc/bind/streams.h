// Streams of a framework, which only its adapter knows.
#pragma once

#include "bind/bind.h"
#include "engine/execute/on_device.h"

namespace perseus::bind {

// Returns the stream on which the framework works now, on this thread. Needs the GIL. Throws what Python raised, or
// Error(unavailable) if no adapter has set a source.
Stream current_stream(int device);

// Makes the framework's current stream wait for the collective without blocking the host thread. Needs the GIL.
void arrive(const Handle& handle);

// See perseus::arrive_alone(). Needs the GIL.
void arrive_alone(const Handle& handle);

}  // namespace perseus::bind
