// Bytes of every rank, over a transport.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace perseus {

// Collective over the transport's group; by rank. Throws Error.
std::vector<std::string> allgather_over(Transport& transport, std::string_view mine);

}  // namespace perseus
