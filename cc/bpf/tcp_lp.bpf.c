// SPDX-License-Identifier: GPL-2.0
#include "struct_ops.h"
#include "../algorithms/tcp_lp.h"

LF_STRUCT_OPS(tcp_lp, LF_TCP_LP_TUNABLES, LF_TCP_LP_OPTIONAL);
