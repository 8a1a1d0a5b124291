// SPDX-License-Identifier: GPL-2.0
#define LF_MEASURES
#include "../algorithms/imtcp.h"
#include "struct_ops.h"

LF_STRUCT_OPS(imtcp, LF_IMTCP_TUNABLES, LF_IMTCP_OPTIONAL);
