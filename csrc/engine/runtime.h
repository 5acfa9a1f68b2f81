// The session of this process: one at a time, from init to shutdown.
#pragma once

#include <memory>
#include <vector>

#include "engine/session.h"

namespace perseus {

// Does nothing where one is running. `selection` and the count of starts with it go into the options. Throws Error.
void start_session(Config config, BootstrapOptions options);
void stop_session();
bool is_session_running();

// Whether the one that was stopped had failed by itself: other ranks may still wait for this process.
bool has_session_failed();

// True in a process forked from one that had a session: it has none of the session's threads.
bool is_forked_child();

// Throws Error(not_initialized) where there is none, or where this process was forked from one that had it (unless
// `also_in_child`).
std::shared_ptr<Session> running_session(bool also_in_child = false);

}  // namespace perseus
