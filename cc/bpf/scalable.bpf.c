// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/scalable.h"

LF_STRUCT_OPS(scalable, LF_SCALABLE_TUNABLES, LF_NO_OPTIONAL);
