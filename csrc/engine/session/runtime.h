// The session of this process: one at a time, from init to shutdown.
#pragma once

#include <memory>
#include <vector>

#include "engine/session/session.h"

namespace perseus {

// Starts the session. Does nothing if one is running. Sets options.generation to the number of earlier starts with the
// same `selection`. Throws Error.
void start_session(Config config, BootstrapOptions options);
void stop_session();
bool is_session_running();

// Returns true if the last session failed by itself or lost a rank. Other ranks may still wait for this process, or may
// never answer it.
bool has_session_failed();

// Returns true if the last session lost a host that sent no shutdown message.
bool was_session_cut_off();

// Returns true in a process forked from one that had a session. It has none of the session's threads.
bool is_forked_child();

// Returns the session. Throws Error(not_initialized) if there is none, or if this process was forked from one that had
// it (unless `also_in_child`).
std::shared_ptr<Session> running_session(bool also_in_child = false);

}  // namespace perseus
