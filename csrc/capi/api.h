// Provides the functions of perseus.h.
#pragma once

#include "capi/perseus.h"

namespace perseus {

// Returns the table of functions, which lives as long as the process.
const PerseusApi& c_api();

}  // namespace perseus
