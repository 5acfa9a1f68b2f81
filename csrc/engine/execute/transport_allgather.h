// An allgather of strings over a transport.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace perseus {

// Returns every rank's bytes, by rank. Collective over the transport's group. Throws Error.
std::vector<std::string> allgather_over(Transport& transport, std::string_view mine);

}  // namespace perseus
