// The options of the parts of a session, from its settings.
#pragma once

#include "base/config.h"
#include "bootstrap/choose.h"
#include "engine/engine_options.h"
#include "transport/fabric.h"
#include "tune/autotuner.h"

namespace perseus {

FabricOptions fabric_options(const Config& config, const BootstrapOptions& bootstrap);
EngineOptions engine_options(const Config& config, int local_rank);
AutotuneOptions autotune_options(const Config& config);

}  // namespace perseus
