// The table of perseus.h, filled.
#pragma once

#include "capi/perseus.h"

namespace perseus {

// Lives as long as the process.
const PerseusApi& c_api();

}  // namespace perseus
