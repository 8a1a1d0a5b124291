// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/cubic.h"

LF_STRUCT_OPS(cubic, LF_CUBIC_TUNABLES, LF_CUBIC_OPTIONAL);
