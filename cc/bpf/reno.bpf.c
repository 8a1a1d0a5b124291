// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/reno.h"

LF_STRUCT_OPS(reno, LF_RENO_TUNABLES, LF_NO_OPTIONAL);
