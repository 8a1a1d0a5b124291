// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/highspeed.h"

LF_STRUCT_OPS(highspeed, LF_HIGHSPEED_TUNABLES, LF_NO_OPTIONAL);
