// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/vegas.h"

LF_STRUCT_OPS(vegas, LF_VEGAS_TUNABLES, LF_VEGAS_OPTIONAL);
