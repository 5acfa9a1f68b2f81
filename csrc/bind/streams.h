// Streams of a framework, which only its adapter knows.
#pragma once

#include "bind/bind.h"
#include "engine/on_device.h"

namespace perseus::bind {

// On which the framework works now, on this thread. With the GIL. Throws what Python raised; Error(unavailable) where
// no adapter has told.
Stream current_stream(int device);

// The framework's work from here on comes after the collective's; nothing waits. With the GIL.
void arrive(const Handle& handle);

}  // namespace perseus::bind
