/* What the module keeps for itself: see binding/state.h. */
#include "binding/state.h"

wr_module_state wr_module;
