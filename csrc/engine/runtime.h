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

// Whether the one that was stopped had failed, by itself or with a rank that was lost: other ranks may still wait for
// this process, or never answer it.
bool has_session_failed();

// Whether it had lost a host that went without a word.
bool was_session_cut_off();

// True in a process forked from one that had a session: it has none of the session's threads.
bool is_forked_child();

// Throws Error(not_initialized) where there is none, or where this process was forked from one that had it (unless
// `also_in_child`).
std::shared_ptr<Session> running_session(bool also_in_child = false);

}  // namespace perseus
