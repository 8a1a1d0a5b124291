// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/ledbat.h"

LF_STRUCT_OPS(ledbat, LF_LEDBAT_TUNABLES, LF_LEDBAT_OPTIONAL);
