// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/bic.h"

LF_STRUCT_OPS(bic, LF_BIC_TUNABLES, LF_NO_OPTIONAL);
